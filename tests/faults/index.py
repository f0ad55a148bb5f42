"""Index of faults: for each fault, engine and launcher, the test that provokes it and the expected outcome.

In every row nothing is left running, no line is lost or doubled, and ``resume`` completes the plan in its order, unless
the outcome differs.
"""

# ruff: noqa: E501 - one fault, one line
from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One fault; ``test`` is a file in tests/ and a function in that file."""

    fault: str
    engines: str
    launcher: str
    test: str
    outcome: str


ALL = "local docker apptainer"
INDEX = (
    Row("tool killed (SIGKILL)", "local", "here", "local/test_main_job.py::test_kill_9_and_resume_lose_repeat_and_reorder_nothing", "resume goes on"),
    Row("tool killed while daemons run", ALL, "here", "faults/test_ends.py::test_with_a_tool_that_is_killed_they_end_and_the_next_start_tidies_up", "they end; files go with the next start"),
    Row("tool killed after its last trial", "local", "here", "unit/test_runner.py::test_what_a_run_left_that_was_killed_after_its_last_trial_goes_when_it_is_resumed", "resume removes what it left"),
    Row("tool killed", "local", "ssh", "cluster/test_every_launcher.py::test_a_tool_that_is_killed_loses_and_repeats_no_finished_trial", "what runs on the host ends"),
    Row("tool killed", "local", "gridengine", "cluster/test_every_launcher.py::test_a_tool_that_is_killed_loses_and_repeats_no_finished_trial", "jobs go on and are found"),
    Row("all processes of a block killed", "local", "ssh slurm gridengine", "cluster/test_every_launcher.py::test_a_node_that_loses_all_processes_of_a_block_gets_it_again_and_repeats_no_finished_trial", "the block runs again, finished trials stay"),
    Row("trial killed, hangs, pauses, out of memory", "local", "here ssh slurm gridengine", "cluster/test_every_launcher.py::test_what_breaks_has_its_outcome_and_the_others_go_on_whatever_the_clock_says", "told, the others go on"),
    Row("results disk full", "local", "here ssh gridengine", "cluster/test_every_launcher.py::test_a_full_disk_loses_no_finished_trial", "the run stops"),
    Row("connection dies", "local", "ssh", "cluster/test_ssh.py::test_a_host_whose_connection_dies_is_left_out_and_its_block_is_run_elsewhere", "another host runs the block"),
    Row("tool killed", "local", "slurm", "cluster/test_every_launcher.py::test_a_tool_that_is_killed_loses_and_repeats_no_finished_trial", "jobs go on and are found"),
    Row("tool killed while trials are stopped", ALL, "here", "faults/test_turns.py::test_with_a_tool_that_is_killed_nothing_is_left_stopped_or_running", "they end"),
    Row("tool killed while its supervisors are stopped", "local", "here", "faults/test_stopped.py::test_supervisors_that_were_stopped_when_the_tool_was_killed_are_swept_by_the_next_start", "the next start lets them end all"),
    Row("process dies in its turn", ALL, "here", "faults/test_turns.py::test_trials_take_turns_and_one_that_dies_in_its_own_leaves_the_others", "failed, the others go on"),
    Row("process killed while it is stopped", "local", "here", "unit/test_turns_processes.py::test_one_that_is_killed_while_it_is_stopped_has_its_outcome_and_the_others_go_on", "failed, the others go on"),
    Row("engine stopped while trials are", "local", "here", "unit/test_turns_processes.py::test_an_engine_that_goes_away_between_two_turns_ends_them_all_and_nothing_is_recorded", "all end, nothing recorded"),
    Row("out of memory while all live", "docker", "here", "faults/test_turns.py::test_one_that_runs_out_of_memory_while_all_live_says_so_and_leaves_the_others", "failed, the others go on"),
    Row("out of memory while all live", "local", "slurm", "cluster/test_turns.py::test_one_that_runs_out_of_the_jobs_memory_while_all_live_says_so_and_leaves_the_others", "failed, the others go on"),
    Row("process hangs, or lies at its gate", "local", "here", "unit/test_turns_processes.py::test_a_process_that_breaks_has_its_outcome_and_the_others_go_on", "timed_out or failed, the others go on"),
    Row("Ctrl-C while trials are stopped", "local", "here", "faults/test_turns.py::test_an_interrupt_ends_them_all_and_resume_runs_the_block_as_a_whole", "exit 130, nothing recorded"),
    Row("killed between lines of one block", "local", "here", "faults/test_turns.py::test_trials_that_took_turns_with_others_that_have_no_line_run_again", "set aside, run again"),
    Row("signal at a random moment", "local", "here", "unit/test_interrupts.py::test_a_signal_soon_after_a_line_reached_the_disk_ends_the_run", "exit 130"),
    Row("Ctrl-C, SIGTERM", "local", "here", "local/test_main_job.py::test_an_interrupt_ends_cleanly_and_still_reports", "exit 130, a report"),
    Row("Ctrl-C, SIGTERM", "local", "slurm", "cluster/test_slurm.py::test_an_interrupt_leaves_jobs_running_and_resume_adopts_them", "jobs go on"),
    Row("wrapper in the trial killed", ALL, "here", "faults/test_ends.py::test_when_only_the_wrapper_or_only_the_program_is_killed_all_of_the_trial_ends", "failed"),
    Row("wrapper in the trial killed, or a daemon left", "local", "slurm", "unit/test_slurm_script.py::test_what_a_trial_leaves_running_is_ended_before_the_next_and_at_the_end", "ended before the next; that one says so"),
    Row("told to end while its program ignores that", "local", "here slurm", "unit/test_bench_command.py::test_told_to_end_it_ends_a_program_that_ignores_that_and_removes_its_files", "it ends with its program, and its files go"),
    Row("daemon in the middle of its start", "local", "slurm", "unit/test_process.py::test_a_process_whose_program_is_just_being_started_is_found_by_its_variables_all_the_same", "waited for, and ended before the next"),
    Row("daemon in the middle of its start", "local", "here", "unit/test_process.py::test_a_process_whose_program_is_just_being_started_is_found_by_its_variables_all_the_same", "waited for, and ended before the next"),
    Row("Ctrl-C while a trial runs", "local", "here", "unit/test_interrupts.py::test_a_signal_soon_after_a_line_reached_the_disk_ends_the_run", "its work folder goes"),
    Row("program killed", ALL, "here", "faults/test_ends.py::test_when_only_the_wrapper_or_only_the_program_is_killed_all_of_the_trial_ends", "failed, with that reason"),
    Row("supervisor killed", "local", "here", "faults/test_ends.py::test_a_daemon_that_outlived_its_supervisor_is_ended_before_the_next_trial_and_the_trial_says_so", "failed; the next trial tells what it ended"),
    Row("program ignores its end", ALL, "here", "faults/test_ends.py::test_a_trial_past_its_limit_ends_with_its_daemons", "timed_out"),
    Row("program never ends", "local", "here", "local/test_main_job.py::test_a_trial_that_never_ends_is_an_outcome_and_the_sweep_goes_on", "timed_out"),
    Row("engine stopped", "docker", "here", "faults/test_gone.py::test_a_daemon_that_stops_stops_the_run_with_nothing_recorded_for_it_and_resume_completes_it", "the run stops, nothing recorded"),
    Row("image removed", "local apptainer", "here", "faults/test_gone.py::test_an_image_that_is_removed_or_overwritten_in_the_middle_is_made_again", "made again"),
    Row("image removed", "local apptainer", "slurm", "unit/test_slurm_script.py::test_a_trial_that_fails_when_its_image_is_gone_is_none_and_runs_again_where_it_is_there", "the job stops, nothing recorded; resume rebuilds it"),
    Row("image overwritten", "apptainer", "here", "faults/test_gone.py::test_an_image_that_is_removed_or_overwritten_in_the_middle_is_made_again", "made again"),
    Row("image with other files", "docker", "here", "faults/test_other_bits.py::test_resume_refuses_an_image_that_holds_other_files_names_them_and_goes_on_with_its_own", "refused, with the files that differ"),
    Row("image removed", "docker", "here", "faults/test_gone.py::test_a_daemon_that_stops_stops_the_run_with_nothing_recorded_for_it_and_resume_completes_it", "made again"),
    Row("out of memory", "docker apptainer", "here", "engines/test_running_out.py::test_running_out_of_memory_is_told", "failed, with that reason"),
    Row("out of memory", "local", "slurm", "cluster/test_slurm.py::test_a_trial_that_runs_out_of_memory_fails_with_that_reason_and_the_block_goes_on", "failed, with that reason"),
    Row("out of memory in a child alone", "docker apptainer", "here", "engines/test_running_out.py::test_memory_that_runs_out_in_a_child_is_told_from_other_ends", "failed, with that reason"),
    Row("out of memory in a program or its child", "local", "here", "unit/test_bench_command.py::test_memory_that_ran_out_in_the_program_or_in_its_child_is_told", "failed, with that reason"),
    Row("results read-only", "local", "here", "unit/test_store.py::test_on_a_read_only_file_system_a_run_can_be_read_and_what_cannot_be_written_is_told", "the run stops"),
    Row("results read-only for a while", ALL, "here", "faults/test_read_only.py::test_results_that_are_read_only_for_a_while_are_waited_for", "waited for, and said"),
    Row("results read-only for a while", "local", "slurm", "cluster/test_bad_input.py::test_results_that_are_read_only_for_a_while_are_waited_for_while_jobs_go_on", "waited for, and said"),
    Row("results read-only for a while, for a job's trial", "local", "slurm", "cluster/test_bad_input.py::test_a_trial_that_cannot_write_its_record_for_a_while_runs_again_when_its_job_can", "told, runs again"),
    Row("stopped in the middle of starting a program", "local", "here", "unit/test_bench_program_turns.py::test_one_that_is_in_the_middle_of_starting_another_program_stands_still_too", "it stands, and goes on"),
    Row("process past its limit in turns", "local", "here", "unit/test_runner.py::test_in_turns_all_that_ended_together_is_on_disk_before_a_failing_reference_stops_the_run", "timed_out; all that ended is on disk"),
    Row("results disk full", "local", "here", "faults/test_full.py::test_results_on_a_disk_that_is_full_stop_the_run_and_resume_loses_and_doubles_nothing", "the run stops"),
    Row("results disk full", "local", "slurm", "cluster/test_every_launcher.py::test_a_full_disk_loses_no_finished_trial", "the run stops"),
    Row("cache disk full", "local", "here", "engines/test_local_images.py::test_a_full_disk_is_one_clear_error_and_leaves_nothing_half_built", "one error, nothing half built"),
    Row("cache disk full", "docker apptainer", "here", "engines/test_running_out.py::test_a_cache_that_is_full_is_one_clear_error_and_leaves_nothing_half_built", "one error, nothing half built"),
    Row("tmp disk full", "docker", "here", "engines/test_running_out.py::test_a_tmp_that_is_full_is_the_trials_own_and_what_it_writes_beside_it_is_kept", "ok, the next trial has an empty one"),
    Row("tmp disk full", "local", "here", "faults/test_full.py::test_a_program_that_fills_its_tmp_is_measured_and_the_log_says_what_is_missing", "ok, evidence from outside"),
    Row("tmp disk full", "local", "here", "faults/test_full.py::test_a_record_that_finds_no_space_fails_in_words_that_say_where", "failed, with that reason"),
    Row("clock step", "local", "here", "unit/test_trial.py::test_a_trial_that_its_engine_fails_costs_the_time_that_it_took_whatever_the_clock_says", "durations hold"),
    Row("clock step", "local", "slurm", "cluster/test_every_launcher.py::test_what_breaks_has_its_outcome_and_the_others_go_on_whatever_the_clock_says", "told"),
    Row("node lost", "local", "slurm", "cluster/test_slurm.py::test_a_node_that_fails_is_named_and_left_out_and_its_block_is_finished_there_when_it_is_back", "named, left out"),
    Row("job that cannot be started, and is held (a Prolog fails)", "local", "slurm", "cluster/test_slurm.py::test_a_job_that_slurm_could_not_start_and_holds_is_told_and_its_block_goes_to_another_node", "named, left out"),
    Row("trial stopped and continued (SIGSTOP)", ALL, "here", "faults/test_stopped.py::test_a_trial_that_was_stopped_for_a_while_is_told_and_runs_again", "told, runs again"),
    Row("container paused", "docker", "here", "faults/test_stopped.py::test_a_container_that_somebody_paused_is_told_and_runs_again", "told, runs again"),
    Row("control group frozen (version 2)", "local", "here", "faults/test_stopped.py::test_a_control_group_that_somebody_froze_is_told_and_its_trial_runs_again", "told, runs again"),
    Row("job suspended", "local", "slurm", "cluster/test_slurm.py::test_a_trial_whose_job_is_suspended_runs_again_and_says_so", "told, runs again"),
    Row("job held by somebody", "local", "slurm", "cluster/test_slurm.py::test_a_job_that_somebody_holds_is_told_and_left_to_resume_while_the_other_block_is_run", "told; its block is left to resume"),
    Row("job requeued and held by somebody as it runs", "local", "slurm", "unit/test_slurm_decisions.py::test_a_job_that_ran_and_was_requeued_to_be_held_is_kept_by_somebody", "told; its block is left to resume"),
)  # fmt: skip


class Reason(NamedTuple):
    """The reason why these faults ("": all) have no row for these engines and this launcher."""

    faults: str
    engines: str
    launcher: str
    why: str


#: Faults that every engine and launcher must have a row for, with the names used in the rows.
FAULTS = {
    "tool killed": ("tool killed (SIGKILL)", "tool killed while daemons run", "tool killed"),
    "wrapper killed": ("wrapper in the trial killed", "wrapper in the trial killed, or a daemon left"),
    "program killed": ("program killed",),
    "engine stopped": ("engine stopped",),
    "image removed": ("image removed",),
    "cache full": ("cache disk full",),
    "results full": ("results disk full",),
    "tmp full": ("tmp disk full",),
    "out of memory": ("out of memory", "out of memory in a program or its child"),
    "out of memory in a child": ("out of memory in a child alone", "out of memory in a program or its child"),
    "signal at a random moment": ("signal at a random moment",),
    "clock step": ("clock step",),
    "results read-only": ("results read-only for a while",),
    "node lost": ("node lost",),
}
REASONS = (
    Reason("", "docker", "slurm", "refused before anything runs: containers of a daemon are outside of the job (unit/test_slurm_decisions.py)"),
    Reason("", "apptainer", "slurm", "script, files and wrapper are local's, but for the words that start a trial (cluster/test_slurm.py, *_in_apptainer)"),
    Reason("engine stopped", "local apptainer", "here slurm", "there is no daemon"),
    Reason("program killed", "local", "slurm", "told by the wrapper, the same file as with `here`; that it is killed itself has a row"),
    Reason("cache full", "local", "slurm", "images are made before anything is submitted, as with `here`"),
    Reason("results full", "docker apptainer", "here", "the tool writes them, whatever the engine"),
    Reason("tmp full", "apptainer", "here", "it is half of the machine's memory, which would be full as well"),
    Reason("tmp full", "local", "slurm", "told by the wrapper, the same file as with `here`"),
    Reason("out of memory in a child", "local", "slurm", "told by the wrapper, the same file as with `here`"),
    Reason("signal at a random moment", "docker apptainer", "here", "in the storm: a half of its kills are SIGTERM and SIGINT (docs/reliability.md)"),
    Reason("signal at a random moment", "local", "slurm", "jobs go on whenever it comes: the row of Ctrl-C, SIGTERM"),
    Reason("clock step", "docker apptainer", "here", "no container has a clock of its own, and the machine's is left alone; durations are monotonic with every engine"),
    Reason("node lost", "local docker apptainer", "here", "the tool is lost with it: the rows of a tool that is killed"),
)  # fmt: skip
