there
look_around 100 glance

# base
facts_1() {
  name=b0003-p000 work='/shared/it'"'"'s $here/b0003/w' apart=2 held=session
}
member_1() {
  "$@" \
    taskset -c 0 \
    env -i "ENVMATRIX_TRIAL=$mark" \
    PAD="$(padding 40)" \
    /venv/bin/python 'x y'
}
# own
facts_2() {
  name=b0003-p001 work='/shared/it'"'"'s $here/b0003/w' apart=0 held=
  program '/my programs' /files out.json
}
member_2() {
  "$@" \
    taskset -c 0 \
    env -i "ENVMATRIX_TRIAL=$mark" \
    PAD="$(padding 40)" \
    /venv/bin/python 'x y'
}
turns b0003-p000.turns 300 2147483648 3 2 '2,1 1,2'

tidy
forget
say "all trials of this job are done"
