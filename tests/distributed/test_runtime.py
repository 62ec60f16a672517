"""Joining the processes of a run: devices, precision, collectives; on GPUs that torch is made to report."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.conftest import REPOSITORY, run
from tests.fake_device import report_gpus
from vitcli.distributed import device as devices
from vitcli.distributed import launch, numerics, runtime
from vitcli.errors import MachineError, VitError

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture
def rank_3_of_4(monkeypatch):
    """This process as the last one of a machine, in a process group whose collectives do nothing."""
    for name, value in {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    monkeypatch.setattr(dist, "new_group", lambda **_: "control")  # gloo would wait for the others
    yield
    dist.destroy_process_group()


def of_all(*others):
    """Return a stand-in for the exchange of values: those of the other processes come first."""
    return lambda value, control, world_size: [*(other or value for other in others), value]


def test_more_processes_than_gpus_are_refused_before_any_is_started(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: ["/dev/nvidia0", "/dev/nvidia1"])
    monkeypatch.setattr(launch, "launch", lambda *_: pytest.fail("started"))
    for visible, count in ((None, 3), ("0", 2), ("MIG-1,MIG-2,MIG-3", 4)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible) if visible else monkeypatch.delenv(
            "CUDA_VISIBLE_DEVICES", False
        )
        refused = run("finetune", "--num-processes", count, "--json")
        assert (refused.code, f"{count} processes need a GPU each" in refused.json["error"]["message"]) == (
            5,
            True,
        )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    devices.check_gpus_suffice(99)


def test_fp32_is_fp32_and_a_gpu_repeats_its_convolutions_whatever_was_set_before():
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"  # torch's own default

    with report_gpus("NVIDIA H200"):
        runtime.start("fp32")
        assert torch.backends.cudnn.conv.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.deterministic and not torch.are_deterministic_algorithms_enabled()
        assert numerics.CUBLAS_WORKSPACE not in os.environ
    assert not torch.backends.cudnn.deterministic


@pytest.mark.parametrize(("workspace", "used"), [(None, ":4096:8"), (":16:8", ":16:8"), (":0:0", ":4096:8")])
def test_exact_asks_every_kernel_of_a_gpu_for_the_same_order(workspace, used, monkeypatch):
    with report_gpus("NVIDIA H200"):
        if workspace:
            monkeypatch.setenv(numerics.CUBLAS_WORKSPACE, workspace)
        runtime.start("fp32", exact=True)

        # With `warn_only` the backward pass of flash attention would not be deterministic.
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ[numerics.CUBLAS_WORKSPACE] == used
    numerics.fix_order_of_sums(torch.device("cpu"), exact=True)
    assert torch.get_num_threads() == 1 and not torch.are_deterministic_algorithms_enabled()


def test_only_one_module_says_what_fp32_means():
    sources = {path: path.read_text() for path in (REPOSITORY / "vitcli").rglob("*.py")}
    settings = r"fp32_precision =|\.allow_tf32|set_float32_matmul_precision"
    assert [path.name for path, text in sources.items() if re.search(settings, text)] == ["numerics.py"]
    # Devices without float64 copy to the CPU first.
    assert not [path for path, text in sources.items() if re.search(r"\.double\(\)[^\n]*\.cpu\(\)", text)]


def test_no_kernel_of_a_gpu_rounds_fp32_and_none_fills_what_is_read_later():
    numerics.use_full_fp32()
    for kernels in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        assert kernels.fp32_precision == "ieee"
    with report_gpus("NVIDIA H200"):
        for exact in (True, False):
            torch.utils.deterministic.fill_uninitialized_memory = True
            numerics.fix_order_of_sums(torch.device("cuda"), exact=exact)
            assert not torch.utils.deterministic.fill_uninitialized_memory
            assert torch.are_deterministic_algorithms_enabled() == exact


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("kind", ["MaxPool", "AdaptiveMaxPool"])
def test_every_kind_of_max_pooling_is_refused_with_exact(kind, dimensions):
    network = torch.nn.Sequential(getattr(torch.nn, f"{kind}{dimensions}d")(2))

    with pytest.raises(VitError, match="max pooling"):
        numerics.check_deterministic(network, torch.device("cuda"))


def test_networks_whose_gradients_a_gpu_adds_at_random_are_refused_with_exact():
    pooled = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.MaxPool2d(3)))
    numerics.check_deterministic(pooled, torch.device("cpu"))
    numerics.check_deterministic(torch.nn.Sequential(torch.nn.AvgPool2d(3)), torch.device("cuda"))
    with pytest.raises(VitError, match="max pooling") as refused:
        numerics.check_deterministic(pooled, torch.device("cuda"))
    assert (refused.value.where, refused.value.exit_code) == ("--exact", 2)


def test_a_process_that_sees_one_gpu_uses_it_whatever_its_local_rank_is(rank_3_of_4, monkeypatch):
    """As with --gpus-per-task=1 of SLURM: four GPUs, of which each process sees its own as cuda:0."""
    wrapped = []

    def wrap(model, *, device_ids, output_device, **_):
        wrapped.append((device_ids, output_device))
        return model

    monkeypatch.setattr(torch.nn.parallel, "DistributedDataParallel", wrap)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_, **__: self)
    others = [("bf16", frozenset({0}), "node1", f"GPU-{number}", "NVIDIA H200") for number in range(3)]
    monkeypatch.setattr(runtime, "_of_all", of_all(*others))
    with report_gpus("NVIDIA H200"):
        joined = runtime.start("auto")
        joined.accelerator.prepare(torch.nn.Linear(1, 1))

    assert joined.device == torch.device("cuda:0") and joined.precision == "bf16"
    assert wrapped == [(None, None)]  # of Accelerate it would be 3, which does not exist here
    assert joined.hardware["gpu"] == "NVIDIA H200" and joined.hardware["cudnn"] is not None
    assert joined.hardware["gpus_per_machine"] == [3, 1]


def test_two_processes_on_one_gpu_are_refused_before_nccl_starts(rank_3_of_4, monkeypatch):
    monkeypatch.setattr(
        runtime, "_of_all", of_all(("bf16", frozenset({0}), "node1", "GPU-1", "NVIDIA H200"), None)
    )
    with (
        report_gpus("NVIDIA H200"),
        pytest.raises(MachineError, match=r"processes 1 and 2 .* same GPU") as seen,
    ):
        runtime.start("auto")

    assert len(str(seen.value).splitlines()) == 3 and seen.value.exit_code == 5
    assert "NVIDIA H200, GPU-7f0, on " in seen.value.where and "--gpus-per-task=1" in seen.value.fix


def test_too_many_processes_of_our_own_launcher_are_refused_by_their_number(monkeypatch):
    monkeypatch.setenv(launch.LAUNCHED, "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with report_gpus("NVIDIA H200"), pytest.raises(MachineError, match="2 processes need a GPU each"):
        runtime.start("auto")


def test_a_gpu_without_bf16_refuses_it_and_auto_takes_another(rank_3_of_4, monkeypatch):
    with report_gpus("Tesla T4", major=7):
        assert [runtime.resolve_precision(name) for name in ("auto", "fp32", "fp16")] == [
            "fp32",
            "fp32",
            "fp16",
        ]
        with pytest.raises(MachineError, match="Tesla T4 does not compute in bf16") as refused:
            runtime.start("bf16")
        assert len(str(refused.value).splitlines()) == 3 and "fp16" in refused.value.fix

    # One that has it, beside one on another machine that has not.
    monkeypatch.setattr(runtime, "_of_all", of_all(("fp32", frozenset({0}), "node1", "GPU-1", "Tesla T4")))
    with report_gpus("NVIDIA H200"):
        joined = runtime.start("auto")
    assert joined.precision == "fp32" and joined.hardware["gpu"] == "NVIDIA H200, Tesla T4"


@pytest.fixture
def gpu_without_cuda(monkeypatch):
    """A GPU that is there for the operating system and not for torch, whose driver is too old."""
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: ["/dev/nvidia0", "/dev/nvidia1"])
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    monkeypatch.setenv(devices.SELECTED, "")

    def too_old():
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 12020).\nPlease update"
        )

    monkeypatch.setattr(torch.cuda, "init", too_old)


def test_a_gpu_that_torch_cannot_use_is_no_reason_to_compute_on_the_cpu_in_silence(
    gpu_without_cuda, monkeypatch
):
    words = ("evaluate", "--ckpt", "demo", "--dataset", "demo:pretrain", "-q", "--json")
    refused = run(*words)
    error = refused.json["error"]
    assert refused.code == 5 and error["message"] == "this machine has 2 NVIDIA GPUs that torch cannot use"
    assert error["where"].startswith("/dev/nvidia0: The NVIDIA driver on your system is too old")
    assert "--device cpu" in error["fix"]

    told = run("doctor")
    assert told.code == 0 and "driver on your system is too old" in " ".join(told.out.split())

    # Asked for, in each way.
    with monkeypatch.context() as patch:
        patch.setenv(devices.VISIBLE, "")
        runtime.start("fp32")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert runtime.start("fp32").device.type == "cpu"


def test_the_gpus_of_a_machine_are_those_that_a_process_may_open(tmp_path, monkeypatch):
    devices.nvidia_gpus.cache_clear()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).write_text("")
    opened = os.open
    denied = tmp_path / "nvidia0"  # by SLURM's control groups, whatever the mode of the file is

    def may_open(path, flags, *more, **keywords):
        if path == denied:
            raise PermissionError(1, "Operation not permitted")
        return opened(path, flags, *more, **keywords)

    monkeypatch.setattr(devices, "DEVICE_FILES", tmp_path)
    monkeypatch.setattr(os, "open", may_open)
    assert devices.nvidia_gpus() == [str(tmp_path / "nvidia1")]

    # Without device files, as in Windows' Linux, by NVIDIA's own program.
    devices.nvidia_gpus.cache_clear()
    monkeypatch.setattr(devices, "DEVICE_FILES", tmp_path / "none")
    listed = SimpleNamespace(stdout="GPU 0: NVIDIA RTX 4090 (UUID: GPU-1)\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: listed)
    assert devices.nvidia_gpus() == ["GPU 0: NVIDIA RTX 4090 (UUID: GPU-1)"]
    devices.nvidia_gpus.cache_clear()


COLLECTIVES = ("all_gather", "all_reduce", "broadcast", "all_to_all_single", "all_gather_object", "barrier")


def test_a_tensor_on_the_cpu_never_goes_to_the_group_of_the_gpus(rank_3_of_4, monkeypatch):
    control, calls = object(), []

    def spy(name):
        def collective(*arguments, group=None, **_):
            if name == "all_gather_object":
                arguments[0][:] = [[], [], [], []]
            tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
            calls.append((name, tensors[-1].device.type if tensors else "cpu", group))

        return collective

    for name in (*COLLECTIVES, "broadcast_object_list"):
        monkeypatch.setattr(dist, name, spy(name))
    state = SimpleNamespace(process_index=3, num_processes=4, device=torch.device("cuda"))
    joined = runtime.Runtime(state, "fp32", None, control, timedelta(minutes=1))
    for device in ("cpu", "meta"):  # which stands for a GPU
        there = torch.ones(4, 2, device=device)
        joined.gather(there)
        joined.broadcast([there])
        joined.exchange(there)
    joined.sum_over_processes(torch.ones(2))
    monkeypatch.setattr(
        joined.__class__, "gather", lambda self, tensor: calls.append(("any", "cpu", control)) or tensor
    )
    joined.any(True)
    joined.concatenated([])
    joined.on_main(dict)

    assert {group for _, device, group in calls if device == "cpu"} == {control}
    assert [name for name, device, group in calls if group is None] == [
        "all_gather",
        "broadcast",
        "all_to_all_single",
    ]
    assert {name for name, *_ in calls} >= {"all_reduce", "all_gather_object", "broadcast_object_list"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
            "lost",
        ),
        ("NCCL communicator was aborted on rank 1.", "lost"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "lost"),
        ("store->get('0') got error: wait timeout after 600000ms", "lost"),
        ("[/a/pair.cc:545] Read error [::1]:80: Connection reset by peer", "lost"),
        (
            "NCCL error in: x.cpp:9, invalid usage\nLast error:\nDuplicate GPU detected : rank 0 and 1",
            "machine",
        ),
        ("NCCL error in: x.cpp:9, unhandled cuda error\nncclUnhandledCudaError: Call failed", "machine"),
        ("adaptive_max_pool2d_backward_cuda does not have a deterministic implementation, but you", "exact"),
        ("CUDA error: uncorrectable ECC error encountered", "machine"),
        ("CUDA error: unspecified launch failure", "machine"),
        ("CUDA error: an illegal memory access was encountered", "machine"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "machine"),
        ("CUDA error: no CUDA-capable device is detected", "machine"),
        ("CUDA error: unknown error", "machine"),
        ("CUDA error: device-side assert triggered", None),  # a bug
        ("mat1 and mat2 shapes cannot be multiplied", None),
    ],
)
def test_what_nccl_and_cuda_say_is_told_apart(text, kind, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    launch.enter("the start")
    error = launch.as_process_error(RuntimeError(text)) or launch.as_device_error(RuntimeError(text))

    assert {"lost": 7, "machine": 5, "exact": 2}.get(kind) == (error and error.exit_code)
    if kind == "lost":
        assert error.where.startswith("process 1, the start: ") and ".cc" not in error.where
    if kind == "machine":
        assert error.where == f"process 1: {text.splitlines()[-1]}"
    if kind == "exact":
        assert "adaptive_max_pool2d_backward_cuda" in error.message
    assert launch.as_process_error(ValueError(text)) is launch.as_device_error(ValueError(text)) is None


def test_the_hardware_of_a_run_is_recorded_and_a_change_is_noted_once(monkeypatch):
    from vitcli.training import state

    here = {"gpu": "NVIDIA H200", "gpus_per_machine": [2], "cuda": "13.2", "cudnn": 91200}
    shared = {"train_data": "a", "eval_data": "b", "num_processes": 2}

    def notes(before: dict, *, exact: bool = False, hardware: dict = here) -> list[str]:
        lines = []
        job = SimpleNamespace(
            runtime=SimpleNamespace(hardware=hardware),
            options=SimpleNamespace(exact=exact),
            progress=SimpleNamespace(note=lines.append),
        )
        monkeypatch.setattr(state, "fingerprint", lambda job: shared | hardware)
        state._compare_fingerprints(json.loads(json.dumps(shared | before)), job)
        return lines

    assert notes(here) == []
    assert "gpu None -> NVIDIA H200" in notes({})[0]  # begun on a CPU
    assert notes({}, hardware={}) == []  # on a CPU
    (line,) = notes(here | {"gpu": "NVIDIA A100", "cuda": "12.6"})
    assert line == (
        "no longer bit-exact with the start of the run: gpu NVIDIA A100 -> NVIDIA H200, cuda 12.6 -> 13.2"
    )
    # With --exact as many processes as one likes sit in as many machines.
    spread = {"gpus_per_machine": [1, 1], "num_processes": 4}
    assert len(notes(here | spread)) == 1 and notes(here | spread, exact=True) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells")
def test_the_peak_memory_of_a_process_is_in_bytes():
    code = "from vitcli.distributed.launch import peak_memory_of as peak; before = peak('self')"
    code += "; bytes_ = bytearray(300_000_000); bytes_[::4096] = bytes(len(bytes_[::4096])); del bytes_"
    code += "; print(peak('self') - before)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)

    assert int(ended.stdout) == pytest.approx(300e6, rel=0.01), ended.stderr
    assert launch.peak_memory_of(0) is None


def test_the_peak_memory_of_a_process_is_in_gib():
    resident = psutil.Process().memory_info().rss / 2**30

    assert 0.5 * resident < runtime.peak_memory_gib() < 20 * resident
    found = runtime.peak_memory()
    assert 0.5 * resident < found["host_peak_memory_gib"] < 20 * resident
    assert found["device_peak_memory_gib"] is None


def test_a_cpu_keeps_its_threads_where_no_exact_sum_is_asked_for():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        numerics.fix_order_of_sums(torch.device("cpu"), exact=False)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("flags", "has_bf16"),
    [
        ("avx2 avx512f avx512bw", False),
        ("avx512f avx512_bf16", True),
        ("amx_bf16 amx_tile", True),
        ("", False),
    ],
)
def test_bf16_is_of_a_cpu_that_multiplies_it(monkeypatch, flags, has_bf16):
    monkeypatch.setattr(runtime.Path, "read_text", lambda path: f"flags : {flags}")

    assert runtime.cpu_has_bf16() == has_bf16


@pytest.mark.parametrize(
    ("precision", "has_bf16", "resolved"),
    [
        ("auto", True, "bf16"),
        ("auto", False, "fp32"),
        ("fp32", True, "fp32"),
        ("bf16", False, "bf16"),  # emulated, if asked for
    ],
)
def test_a_cpu_computes_in_bf16_by_itself_where_it_multiplies_it(monkeypatch, precision, has_bf16, resolved):
    monkeypatch.setattr(runtime, "cpu_has_bf16", lambda: has_bf16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)

    assert runtime.resolve_precision(precision) == resolved
    with pytest.raises(MachineError, match="fp16 needs a GPU, and this machine has none") as refused:
        runtime.resolve_precision("fp16", where="--precision")
    assert refused.value.where == "--precision"


@pytest.mark.parametrize(("precision", "has_bf16", "warns"), [
    ("bf16", False, True), ("bf16", True, False), ("auto", False, False), ("fp32", False, False),
])  # fmt: skip
def test_who_asks_for_bf16_on_a_cpu_that_emulates_it_is_told(monkeypatch, precision, has_bf16, warns):
    monkeypatch.setattr(runtime, "cpu_has_bf16", lambda: has_bf16)

    assert (runtime.EMULATED in runtime.start(precision).notes) == warns


def test_an_error_of_one_process_says_which_it_was(monkeypatch):
    state = SimpleNamespace(process_index=2, num_processes=4, device=torch.device("cpu"))
    joined = runtime.Runtime(state, "fp32", None, "control", timedelta(minutes=1))
    with pytest.raises(VitError) as caught, joined.local_errors():
        raise VitError("bad", where="", fix="")
    assert caught.value.rank == 2

    # What the first one raised is raised by all: a mistake of the user by each, a bug as one of the first.
    for error in (VitError("bad", where="", fix=""), ValueError("bug")):
        monkeypatch.setattr(
            dist, "broadcast_object_list", lambda outcome, error=error, **_: outcome.__setitem__(1, error)
        )
        with pytest.raises(type(error)) as caught:
            joined.on_main(lambda: pytest.fail("only the first process acts"))
        assert getattr(caught.value, "rank", None) == (0 if type(error) is ValueError else None)


def test_the_processes_of_a_machine_are_those_that_its_launcher_has_counted(monkeypatch):
    state = SimpleNamespace(process_index=2, num_processes=4, device=torch.device("cpu"))
    joined = runtime.Runtime(state, "fp32", None, "control", timedelta(minutes=1))

    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert joined.processes_here == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert joined.processes_here == 2


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_process_has_its_part_of_the_cores_of_its_machine(rank_3_of_4, monkeypatch, is_bound):
    """srun binds each task to cores of its own, whose number was divided by that of the tasks once more."""
    cores = [range(8 * rank, 8 * rank + 8) if is_bound else range(64) for rank in range(8)]
    _, *others = [("fp32", frozenset(each), socket.gethostname(), "", "") for each in cores]
    others.append(("fp32", frozenset(range(64)), "another machine", "", ""))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(cores[0]), raising=False)
    monkeypatch.setattr(runtime, "_of_all", of_all(*others))

    assert runtime.start("fp32").cores == 8


def test_a_network_is_taken_out_of_all_its_wrappers():
    inner = torch.nn.Linear(1, 1)
    compiled, parallel, both = (torch.nn.Module() for _ in range(3))
    compiled._orig_mod, parallel.module, both.module = inner, inner, compiled

    assert all(runtime.unwrap(each) is inner for each in (inner, compiled, parallel, both))


@pytest.mark.parametrize(
    ("kind", "count", "found"),
    [("cuda", 2, ["cuda:0", "cuda:1"]), ("mps", 1, ["mps"]), ("xpu", 1, ["xpu:0"]), (None, 0, [])],
)
def test_accelerators_have_numbers_where_there_may_be_several(monkeypatch, kind, count, found):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type=kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(runtime, "cpu_has_bf16", lambda: True)

    assert runtime.accelerators() == found
    # By itself it computes in bf16 on a CPU that has it, and on no GPU that emulates it.
    assert runtime.resolve_precision("auto") == ("bf16" if kind is None else "fp32")


def test_losses_are_scaled_in_fp16_alone_and_torch_aborts_a_minute_after_the_run_ends():
    for precision in ("fp32", "bf16"):
        assert not runtime.start(precision).scaler.is_enabled()
    waits, real = [], runtime.InitProcessGroupKwargs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            runtime, "InitProcessGroupKwargs", lambda timeout: waits.append(timeout) or real(timeout=timeout)
        )
        runtime.start("fp32", stall_minutes=2)
        with report_gpus("NVIDIA H200"):
            assert runtime.start("fp16", stall_minutes=2).scaler.is_enabled()
    assert waits == [timedelta(minutes=2), timedelta(minutes=3)]


@pytest.mark.parametrize("world_size", ["1", "2"])
def test_a_signal_ends_a_process_that_waits_for_others_unless_it_is_ignored(monkeypatch, world_size):
    monkeypatch.setenv("WORLD_SIZE", world_size)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handler(number: int, frame: object) -> None:
        pytest.fail("no signal was sent")

    try:
        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as under nohup
        with runtime._ended_by_signals():
            assert signal.getsignal(signal.SIGTERM) == (signal.SIG_DFL if world_size == "2" else handler)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def test_after_the_end_of_a_run_a_process_is_the_only_one_on_its_device():
    state = SimpleNamespace(process_index=3, num_processes=4, device=torch.device("meta"))
    joined = runtime.Runtime(state, "bf16", None, "control", timedelta(minutes=1), hardware={"gpu": "x"})

    alone = joined.alone()

    assert (alone.rank, alone.world_size, alone.is_main, alone.control) == (0, 1, True, None)
    assert (alone.device, alone.precision, alone.hardware) == (joined.device, "bf16", {"gpu": "x"})
    assert alone.concatenated([1]) == [1] and alone.on_main(lambda: 7) == 7
    alone.shutdown()
