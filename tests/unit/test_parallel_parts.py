"""The pure functions of parallel training: shares, scaling, merging, finding the culprit, parsing GPU facts."""

import signal
import sys
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import options as workload_options
from bench.errors import BenchError, RunError
from bench.evidence import collectives, onednn
from bench.parallel import device_and_learning_rate, launch, rank_processes

ROOT = Path(__file__).parents[2]


def options(**chosen):
    return {**workload_options.defaults(), **chosen}


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "99999", "\u00b2"])
def test_a_bad_number_of_processes_in_the_environment_is_refused(text):
    with pytest.raises(workload_options.OptionError, match="BENCH_PROCESSES"):
        device_and_learning_rate.processes(options(parallel="ddp"), {"BENCH_PROCESSES": text})


def test_the_option_wins_over_the_variable_and_single_process_ways_ignore_both():
    variables = {"BENCH_PROCESSES": "4"}
    assert device_and_learning_rate.processes(options(parallel="ddp"), variables) == 4
    assert device_and_learning_rate.processes(options(parallel="ddp", processes=3), variables) == 3
    assert device_and_learning_rate.processes(options(parallel="ddp"), {}) == 2
    assert device_and_learning_rate.processes(options(parallel="pipeline"), variables) == 1
    assert device_and_learning_rate.processes(options(), variables) == 1


@pytest.mark.parametrize(
    ("scope", "scaling", "batch", "rate"),
    [
        ("job", "none", 64, 0.1),
        ("job", "linear", 64, 0.1),
        ("process", "none", 256, 0.1),
        ("process", "linear", 256, 0.4),
        ("process", "square-root", 256, 0.2),
    ],
)
def test_batch_and_learning_rate_scaling_are_explicit(scope, scaling, batch, rate):
    chosen = options(parallel="ddp", batch_scope=scope, learning_rate_scaling=scaling)
    assert device_and_learning_rate.effective_batch(chosen, 4) == batch
    assert device_and_learning_rate.learning_rate(chosen, 4) == pytest.approx(rate)


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 9))
def test_every_sample_is_seen_once_by_one_rank_and_in_the_order_of_one_process(count, batch, world):
    pytest.importorskip("torch")
    from bench import feeds

    def order():
        return list(islice(feeds.order(count, batch, options()), -(-count // batch)))

    alone = [numbers.tolist() for numbers in order()]
    cut = [[feeds.share(numbers, rank, world).tolist() for rank in range(world)] for numbers in order()]
    assert [list(chain(*parts)) for parts in cut] == alone
    assert sorted(chain(*alone)) == list(range(count))
    assert all(max(map(len, parts)) - min(map(len, parts)) <= 1 for parts in cut)


def record(rank, peak, skipped=None):
    return {
        "skipped": skipped,
        "rank": {"rank": rank},
        "timing": {"steps_ns": [rank], "training_ns": 10 + rank},
        "result": {"samples": 22},
        "metrics": {"peak_rss_bytes": peak, "samples_per_s": 5.0 + rank},
        "evidence": {"parallel": {"ranks": []}},
    }


def test_counters_are_summed_over_ranks_and_unknown_stays_unknown():
    merged = launch.merge_records([record(0, 10), record(1, 20)])
    assert merged["metrics"]["peak_rss_bytes"] == 30
    assert [part["peak_rss_bytes"] for part in merged["evidence"]["parallel"]["ranks"]] == [10, 20]
    assert launch.merge_records([record(0, 10), record(1, None)])["metrics"]["peak_rss_bytes"] is None


def test_the_job_takes_as_long_as_its_slowest_rank():
    merged = launch.merge_records([record(0, 10), record(1, 20)])
    assert merged["timing"]["training_ns"] == 11
    assert merged["metrics"]["training_s"] == 11e-9
    assert merged["metrics"]["samples_per_s"] == pytest.approx(22 / 11e-9)
    assert [part["training_ns"] for part in merged["evidence"]["parallel"]["ranks"]] == [10, 11]


def test_one_skipping_rank_skips_the_job():
    merged = launch.merge_records([record(0, 10), {"skipped": "no GPU", "rank": {"rank": 1}, "metrics": None}])
    assert merged["skipped"] == "no GPU"
    assert "rank" not in merged


def started(tmp_path, programs):
    python = [sys.executable, "-S", "-c"]
    return rank_processes.Ranks(lambda rank: [*python, programs[rank]], len(programs), str(tmp_path), str(tmp_path))


#: A rank that loses a peer first waits for it to exist: a slow start must not look like its end.
LOST = """
import os, sys, time
while not os.path.exists("there"): time.sleep(0.01)
print("Connection closed by peer", file=sys.stderr)
sys.exit(1)
"""
THERE = "import os, sys, time; open('there', 'w'); "
KILLED = THERE + "time.sleep(0.3); os.kill(os.getpid(), 9)"
OWN = THERE + "time.sleep(0.3); sys.exit('out of luck')"
FOREVER = "import time; time.sleep(1000)"


@pytest.mark.parametrize(
    ("programs", "rank", "how"),
    [
        ([LOST, KILLED, LOST], 1, "was killed by SIGKILL"),
        ([LOST, OWN, FOREVER], 1, "ended with exit status 1"),
        ([THERE + FOREVER, LOST], 1, "ended with exit status 1"),
    ],
)
def test_the_rank_that_broke_is_named_not_the_one_that_lost_it(tmp_path, programs, rank, how):
    running = started(tmp_path, programs)
    failure = running.wait()
    assert (failure.rank, failure.how) == (rank, how)
    assert all(process.poll() is not None for process in running.processes)


def test_ranks_that_all_end_well_are_no_failure(tmp_path):
    assert started(tmp_path, ["", "import time; time.sleep(0.1)"]).wait() is None


def test_a_rank_that_cannot_be_started_takes_the_others_with_it(tmp_path):
    pids = tmp_path / "pid"
    first = [sys.executable, "-S", "-c", f"import os,time; open({str(pids)!r},'w').write('x'); time.sleep(1000)"]
    with pytest.raises(FileNotFoundError):
        rank_processes.Ranks(lambda rank: first if rank == 0 else ["/nowhere/python"], 2, str(tmp_path), str(tmp_path))
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(pids).encode() in read(p)]


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("autocast", ["none", "bfloat16", "float16"])
def test_the_check_against_one_process_catches_half_a_gradient_and_a_shard_twice(autocast, one_thread):
    torch = pytest.importorskip("torch")
    from bench import feeds, models, steps, timed_loop
    from bench.devices import Cpu
    from bench.parallel import loss_equality_check
    from bench.rank_and_device import Place

    chosen = options(verify_steps=4, batch_size=16, autocast=autocast)
    samples, place = Random(torch), Place(Cpu())

    def losses(wrong):
        torch.manual_seed(chosen["seed"])
        model = models.build(chosen, (1, 28, 28), 10)
        rate = chosen["learning_rate"] / (2 if wrong == "half a gradient" else 1)
        optimizer = steps.optimizer_for(model.parameters(), {**chosen, "learning_rate": rate})
        source = feeds.in_memory(samples, chosen, 16, place)
        if wrong == "a shard twice":
            source = (feeds.Batch(doubled(images), doubled(labels), total) for images, labels, total in source)
        loop = timed_loop.Loop(source, place, timed_loop.Length(checked=4, warm_up=0, timed=1, epoch=0))
        timed_loop.drive(steps.Trainer(model, model, optimizer, chosen, place), loop)
        return loop.end().losses

    reference, allowed = (
        loss_equality_check.one_process_losses(samples, chosen, 1),
        loss_equality_check.tolerance(chosen, "cpu"),
    )
    assert loss_equality_check.check_losses_equal(losses(None), reference, allowed)["steps"] == 4
    for mistake in ("half a gradient", "a shard twice"):
        with pytest.raises(RunError, match="not equal to one process"):
            loss_equality_check.check_losses_equal(losses(mistake), reference, allowed)
    with pytest.raises(RunError, match="not equal to one process"):
        loss_equality_check.check_losses_equal([float("nan")] * 4, reference, 1.0)


def doubled(rows):
    half = rows[: len(rows) // 2]
    return half.repeat(2, *[1] * (half.dim() - 1))


class Random:
    """Random samples in the shape of Fashion-MNIST."""

    def __init__(self, torch):
        torch.manual_seed(3)
        self.images = torch.randint(0, 256, (200, 1, 28, 28), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (200,))
        self.set = SimpleNamespace(shape=(1, 28, 28), classes=10)


@pytest.mark.parametrize("way", ["pipeline", "dp"])
@pytest.mark.parametrize("batch", [7, 1])
def test_a_cut_network_gives_the_scores_of_the_whole_one_and_passes_errors_on(way, batch):
    torch = pytest.importorskip("torch")
    from bench import models
    from bench.parallel import threaded_networks

    model = models.build(options(), (1, 28, 28), 10)
    images = torch.rand(batch, 1, 28, 28)
    whole = model(images)
    cpu = torch.device("cpu")
    cut = (
        threaded_networks.Pipeline([model.features, model.classifier], [cpu, cpu], 3)
        if way == "pipeline"
        else threaded_networks.ThreadedDataParallel(model, 2)
    )
    assert torch.allclose(cut(images), whole, atol=1e-5)
    with torch.no_grad():
        assert not cut(images).requires_grad
    with pytest.raises(RuntimeError):
        cut(torch.rand(batch, 3, 28, 28))


def test_an_empty_share_adds_nothing_and_breaks_nothing():
    torch = pytest.importorskip("torch")
    from bench import models, steps
    from bench.devices import Cpu
    from bench.rank_and_device import Place
    from bench.steps import Batch

    model = models.build(options(), (1, 28, 28), 10)
    optimizer = steps.optimizer_for(model.parameters(), options())
    step = steps.Trainer(model, model, optimizer, options(), Place(Cpu(), world=2))
    loss = step(Batch(torch.rand(0, 1, 28, 28), torch.zeros(0, dtype=torch.long), 2))
    assert loss.item() == 0.0
    assert all(not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("accumulation", [1, 3])
def test_shares_of_unequal_size_have_the_gradients_of_the_whole_batch(accumulation):
    torch = pytest.importorskip("torch")
    from bench import models, steps
    from bench.devices import Cpu
    from bench.rank_and_device import Place
    from bench.steps import Batch

    chosen = options(accumulation=accumulation, model="lenet5")
    images, labels = torch.rand(7, 1, 28, 28), torch.arange(7)

    def gradients(first, last, world):
        torch.manual_seed(1)
        model = models.build(chosen, (1, 28, 28), 10)
        step = steps.Trainer(
            model, model, steps.optimizer_for(model.parameters(), chosen), chosen, Place(Cpu(), world=world)
        )
        loss = step(Batch(images[first:last], labels[first:last], 7))
        return loss, [parameter.grad for parameter in model.parameters()]

    loss, whole = gradients(0, 7, 1)
    shares = [gradients(0, 4, 2), gradients(4, 7, 2)]
    assert sum(share for share, _ in shares).item() / 2 == pytest.approx(loss.item(), rel=1e-6)
    for expected, mine, theirs in zip(whole, *(found for _, found in shares), strict=True):
        assert torch.allclose((mine + theirs) / 2, expected, atol=1e-6)


def test_batch_norm_is_named_as_what_makes_shares_unequal():
    torch = pytest.importorskip("torch")
    from bench.parallel import loss_equality_check

    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    loss_equality_check.check_comparable(model, options(parallel="ddp"))
    loss_equality_check.check_comparable(model, options(verify_steps=1))
    for shared in ({"parallel": "ddp"}, {"accumulation": 2}):
        with pytest.raises(BenchError, match="BatchNorm2d sees its share"):
            loss_equality_check.check_comparable(model, options(verify_steps=1, **shared))


VERBOSE = """\
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX2
onednn_verbose,v1,primitive,create:cache_miss,cpu,convolution,jit:avx2,forward_training,src:f32,attr-scratchpad:user
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,src:f32,attr-scratchpad:user{},mb4,0.03
onednn_verbose,v1,primitive,create:cache_{},cpu,convolution,jit:avx2,forward_training,src:f32,attr-scratchpad:user
"""


def test_onednn_s_own_words_are_read():
    seen = onednn.described(VERBOSE.format("", "hit"))
    assert seen == {
        "version": "3.12.0",
        "isa": "Intel AVX2",
        "runtime": "OpenMP",
        "implementation": "jit:avx2",
        "fpmath": "strict",
        "primitive_cache": True,
    }
    other = onednn.described(VERBOSE.format(" attr-fpmath:bf16", "miss"))
    assert (other["fpmath"], other["primitive_cache"]) == ("bf16", False)
    assert set(onednn.described("").values()) == {None}


@pytest.mark.parametrize(("smallest", "found"), [(65, 64), (64, None), (10**9, None)])
def test_a_smallest_product_holds_only_if_onednn_takes_the_next_larger_one(smallest, found, monkeypatch):
    """Stands in for a CPU on which oneDNN multiplies products of ``smallest`` rows and more."""
    torch = SimpleNamespace(ones=lambda edge, _, dtype: edge, bfloat16="bfloat16", float32="float32")
    monkeypatch.setenv("TORCH_MKLDNN_MATMUL_MIN_DIM", "64")
    monkeypatch.setattr(onednn, "_multiplies", lambda _, edge: edge >= smallest)
    assert onednn._matmul_min_dim(torch) == found


def test_primitives_that_are_kept_are_counted_from_the_newest_back():
    """Of 80, the cache kept the last 64; nothing is counted if all 80 were kept."""
    line = "onednn_verbose,v1,primitive,create:cache_{},cpu,eltwise,jit:avx2,forward_training\n"
    created = 80 * line.format("miss")
    assert onednn.kept_primitives(created + 64 * line.format("hit") + 16 * line.format("miss")) == 64
    assert onednn.kept_primitives(created + 80 * line.format("miss")) == 0
    assert onednn.kept_primitives(created + 80 * line.format("hit")) is None
    assert onednn.kept_primitives("") is None


def test_hidden_nccl_settings_are_reported(tmp_path):
    file = tmp_path / "nccl.conf"
    file.write_text("# site\nNCCL_ALGO=Ring # fast\nNCCL_DEBUG = WARN\nnonsense\n")
    assert collectives.hidden_settings([str(file), str(tmp_path / "absent")]) == {
        str(file): {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "WARN"}
    }


@pytest.mark.parametrize(("number", "text"), [(22703, "2.27.3"), (2804, "2.8.4"), (21005, "2.10.5")])
def test_nccl_version_numbers_are_written_as_people_do(number, text):
    assert collectives.nccl_version(number) == text


def test_signals_are_named_and_status_kept():
    assert rank_processes.exit_description(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert rank_processes.exit_description(3) == "ended with exit status 3"
    assert Path(rank_processes.python()[0]).name.startswith("python")
