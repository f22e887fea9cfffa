//! The program as its users and parents meet it: exit codes, what it says where, and how it ends.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use ringtune_security::{Cluster, JoinToken, Role};
use ringtune_shared::ids::WorkerId;

fn worker() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtune-worker"));
    command.env_clear().stdin(Stdio::null());
    command
}

fn daemon(state: &Path) -> Command {
    let mut command = worker();
    command
        .args([
            "--coordinator",
            "http://127.0.0.1:1",
            "--listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
        ])
        .arg("--state-dir")
        .arg(state);
    command
}

/// A child that does not outlive a failed test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon that announces itself and ends with its stdin; returns what it announced.
fn announced(mut command: Command) -> (Running, serde_json::Value) {
    let mut child = command
        .args(["--announce", "--lifeline"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (Running(child), serde_json::from_str(&line).unwrap())
}

fn fails(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing of {text:?}");
    }
    assert!(output.stdout.is_empty(), "errors belong on stderr");
}

#[test]
fn wrong_settings_are_exit_code_2_and_named() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("worker.toml");
    std::fs::write(&file, "[coordinator]\nurll = \"http://h:1\"\n").unwrap();
    let config = daemon(state.path()).arg("--config").arg(&file).output().unwrap();
    fails(&config, 2, &["coordinator.urll", "did you mean"]);
    let environment = daemon(state.path()).env("RINGTUNE__COMPUTE__THREAD", "1").output().unwrap();
    fails(&environment, 2, &["RINGTUNE__COMPUTE__THREAD"]);
    fails(&daemon(state.path()).args(["--threads", "many"]).output().unwrap(), 2, &["--threads", "many"]);
    fails(&worker().args(["--coordinator", "ftp://x"]).output().unwrap(), 2, &["coordinator.url", "ftp://x"]);
    let far = ["--coordinator", "http://10.0.0.1:7070", "--listen", "0.0.0.0:0"];
    fails(
        &worker().args(far).output().unwrap(),
        2,
        &["coordinator.url", "grpc.listen", "https://10.0.0.1:7070"],
    );
    // Beyond loopback a worker needs a certificate, and is told how to get one.
    let mut everywhere = worker();
    everywhere
        .args(["--listen", "0.0.0.0:0", "--http-listen", "127.0.0.1:0", "--state-dir"])
        .arg(state.path());
    let steps =
        ["grpc.listen", "0.0.0.0:0", "ringtune token create --role worker", "--join TOKEN", "--insecure"];
    fails(&everywhere.output().unwrap(), 2, &steps);
}

fn token(role: Role) -> String {
    JoinToken::new(role, [7; 32], Cluster::from(WorkerId::new().0)).unwrap().reveal()
}

/// A daemon whose coordinator, which nobody reaches, speaks TLS.
fn joining(state: &Path) -> Command {
    let mut command = worker();
    command
        .args(["--coordinator", "https://127.0.0.1:1", "--listen", "127.0.0.1:0"])
        .args(["--http-listen", "127.0.0.1:0", "--log-format", "json", "--state-dir"])
        .arg(state);
    command
}

#[test]
fn a_token_that_is_none_is_exit_code_2_and_not_repeated() {
    let state = tempfile::tempdir().unwrap();
    let whole = token(Role::Worker);
    let cut = &whole[..whole.len() - 2];
    let mut mistyped = whole.clone().into_bytes();
    mistyped[20] = if mistyped[20] == b'a' { b'b' } else { b'a' };
    let mistyped = String::from_utf8(mistyped).unwrap();
    let observer = token(Role::Observer);
    for (given, word) in
        [(cut, "cut"), (&mistyped, "mistyped"), (&observer, "role observer"), ("hello", "not a token")]
    {
        let output = joining(state.path()).args(["--join", given]).output().unwrap();
        fails(&output, 2, &["join token", word]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(given.len() < 20 || !told.contains(&given[6..20]), "{told}");
    }
    let both = joining(state.path()).args(["--join-file", "-", "--lifeline"]).output().unwrap();
    fails(&both, 2, &["--join-file", "--lifeline"]);
    let missing = joining(state.path()).args(["--join-file", "/nowhere/token"]).output().unwrap();
    fails(&missing, 2, &["--join-file /nowhere/token"]);
    // It goes to nobody in the clear.
    let plain = daemon(state.path()).args(["--join", &whole]).output().unwrap();
    fails(&plain, 2, &["coordinator.url", "https://"]);
}

#[test]
fn a_token_is_seen_in_neither_the_arguments_nor_the_environment() {
    let (whole, state) = (token(Role::Worker), tempfile::tempdir().unwrap());
    let file = state.path().join("token");
    std::fs::write(&file, format!("{whole}\n")).unwrap();
    let given = |change: &dyn Fn(&mut Command)| {
        let state = tempfile::tempdir().unwrap();
        let mut command = joining(state.path());
        change(&mut command);
        let mut child = Running(command.stderr(Stdio::piped()).spawn().unwrap());
        // It has read the token when it tries to join.
        let log = BufReader::new(child.0.stderr.take().unwrap());
        let tried = log.lines().map(|line| line.unwrap()).find(|line| line.contains("cannot join yet"));
        let tried = tried.expect("it tries for ever");
        assert!(tried.contains("127.0.0.1:1") && !tried.contains(&whole[6..20]), "{tried}");
        let about = |name: &str| {
            let bytes = std::fs::read(format!("/proc/{}/{name}", child.0.id())).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        for name in ["cmdline", "environ"] {
            let shown = about(name);
            assert!(!shown.contains(&whole[6..20]) && !shown.contains("RINGTUNE_JOIN"), "{name}: {shown}");
        }
        // Nor in what it holds open.
        for entry in std::fs::read_dir(format!("/proc/{}/fd", child.0.id())).unwrap() {
            let path = entry.unwrap().path();
            let target = std::fs::read_link(&path).unwrap_or_default();
            if target.to_string_lossy().contains("ringtune-join") {
                assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "it is emptied");
            }
        }
        about("cmdline")
    };
    let shown = given(&|command| _ = command.args(["--join", &whole, "--threads", "1"]));
    assert!(shown.contains("--join-file") && shown.contains("--threads"), "{shown}");
    given(&|command| _ = command.arg(format!("--join={whole}")));
    given(&|command| _ = command.env("RINGTUNE_JOIN", &whole));
    given(&|command| _ = command.arg("--join-file").arg(&file));
}

#[test]
fn a_parent_hears_where_the_worker_listens_and_takes_it_along() {
    let state = tempfile::tempdir().unwrap();
    // Both ports are taken: free ones are used instead.
    let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [grpc, http] = [0, 1].map(|index| taken[index].local_addr().unwrap().to_string());
    let mut command = worker();
    command
        .args(["--coordinator", "http://127.0.0.1:1", "--free-ports"])
        .args(["--listen", &grpc, "--http-listen", &http, "--state-dir"])
        .arg(state.path());
    let (mut child, line) = announced(command);
    assert_eq!(line["event"], "listening");
    assert!(line["id"].as_str().unwrap().parse::<WorkerId>().is_ok());
    assert!(line["grpc"] != grpc.as_str() && line["http"] != http.as_str());
    // It serves there.
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(line["http"].as_str().unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("/healthz").starts_with("HTTP/1.1 200"));
    let metrics = ask("/metrics");
    for name in ["step_seconds", "loss", "rank", "session_up", "exchange_sent_bytes_total"] {
        assert!(metrics.contains(&format!("ringtune_worker_{name}")), "{name}");
    }
    // The parent goes, however it goes: its end of the pipe closes.
    drop(child.0.stdin.take());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_taken_port_and_a_taken_state_folder_are_told() {
    let state = tempfile::tempdir().unwrap();
    let (first, line) = announced(daemon(state.path()));
    fails(
        &daemon(state.path()).output().unwrap(),
        2,
        &["another worker", &state.path().display().to_string(), "--state-dir"],
    );
    let other = tempfile::tempdir().unwrap();
    let port = line["grpc"].as_str().unwrap();
    let taken = worker()
        .args(["--coordinator", "http://127.0.0.1:1", "--http-listen", "127.0.0.1:0", "--listen", port])
        .arg("--state-dir")
        .arg(other.path())
        .output()
        .unwrap();
    fails(&taken, 1, &["grpc.listen", port]);
    drop(first);
    // A killed worker leaves no lock behind.
    let (_second, again) = announced(daemon(state.path()));
    assert_eq!(again["id"], line["id"]);
}

#[test]
fn logs_are_json_where_nobody_looks() {
    let state = tempfile::tempdir().unwrap();
    let (mut child, _) = announced(daemon(state.path()));
    drop(child.0.stdin.take());
    let mut log = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["message"] == "worker" && line["libtorch"] == "2.13.0"), "{log}");
}

#[test]
fn doctor_reports_for_people_and_programs() {
    let text = worker().args(["doctor", "--output", "text"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let words = [
        "processor",
        "memory",
        "NUMA",
        "libtorch",
        "2.13.0",
        "fit",
        "instruction sets",
        "frequency",
        "huge pages",
    ];
    for word in words.iter().chain(&[
        "open files",
        "disk",
        "clock",
        "interface",
        "own name",
        "gRPC port",
        "HTTP port",
    ]) {
        assert!(text.contains(word), "{word:?} is missing of {text}");
    }
    let json = worker()
        .args(["doctor", "--output", "json", "--coordinator", "http://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(json.status.code(), Some(1), "a coordinator that is not there");
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["fit"], false);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == "coordinator" && check["verdict"] == "bad"));
}

#[test]
fn generate_draws_and_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/toy-sd");
    let generate = |output: &Path, more: &[&str]| {
        worker()
            .args(["generate", "--prompt", "a photo of a star", "--steps", "2", "--threads", "1"])
            .arg("--model")
            .arg(&model)
            .arg("-o")
            .arg(output)
            .args(more)
            .output()
            .unwrap()
    };
    let file = folder.path().join("one.png");
    let output = generate(&file, &["--size", "32"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let picture = image::open(&file).unwrap();
    assert_eq!((picture.width(), picture.height()), (32, 32));
    fails(&generate(&file, &["--size", "33"]), 2, &["--size", "33"]);
    fails(&generate(&file, &["--count", "2"]), 2, &["--output"]);
    let embeds = folder.path().join("none.safetensors");
    let embeds = embeds.to_str().unwrap();
    fails(&generate(&file, &["--embeds", embeds]), 2, &["--embeds", "none.safetensors"]);
    assert!(generate(&folder.path().join("many"), &["--count", "2", "--size", "32"]).status.success());
    assert_eq!(std::fs::read_dir(folder.path().join("many")).unwrap().count(), 2);
}

#[test]
fn a_batch_draws_what_single_pictures_are() {
    let folder = tempfile::tempdir().unwrap();
    let toy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/toy-sd");
    // Noise in the steps, guidance, a last batch that is not full.
    let draw = |name: &str, batch: &str| {
        let output = worker()
            .args(["generate", "--prompt", "a red star", "--prompt", "a heart", "--negative-prompt", "mud"])
            .args(["--steps", "4", "--threads", "1", "--mixed-precision", "no", "--scheduler", "euler_a"])
            .args(["--count", "3", "--width", "48", "--height", "32", "--batch", batch])
            .arg("--model")
            .arg(&toy)
            .arg("-o")
            .arg(folder.path().join(name))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let names = ["00-000", "00-001", "00-002", "01-000", "01-001", "01-002"];
        names.map(|picture| {
            image::open(folder.path().join(name).join(format!("prompt-{picture}.png"))).unwrap().to_rgb8()
        })
    };
    let (alone, together) = (draw("alone", "1"), draw("together", "2"));
    for (one, other) in alone.iter().zip(&together) {
        assert_eq!(one.dimensions(), (48, 32));
        // Rounding may turn a last bit into a level.
        let worst = one.as_raw().iter().zip(other.as_raw()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= 2, "{worst} levels apart");
        assert_eq!(alone.iter().filter(|picture| *picture == one).count(), 1, "every picture is another one");
    }
}

#[test]
fn generate_draws_with_every_scheduler() {
    let folder = tempfile::tempdir().unwrap();
    let toy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/toy-sd");
    let generate = |model: &Path, output: &Path, more: &[&str]| {
        worker()
            .args(["generate", "--prompt", "a photo of a star", "--steps", "4", "--threads", "1"])
            .args(["--size", "32", "--mixed-precision", "no"])
            .arg("--model")
            .arg(model)
            .arg("-o")
            .arg(output)
            .args(more)
            .output()
            .unwrap()
    };
    let draw = |model: &Path, more: &[&str]| {
        let file = folder.path().join("one.png");
        let output = generate(model, &file, more);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{more:?}: {told}");
        (image::open(&file).unwrap().to_rgb8(), told)
    };
    // 1. Every name draws, its own picture, and the same one again for the same seed.
    let names = ["ddim", "pndm", "euler", "euler_a", "dpm++_2m", "dpm++_2m_karras", "lms"];
    let pictures = names.map(|name| draw(&toy, &["--scheduler", name]).0);
    for (index, name) in names.into_iter().enumerate() {
        assert_eq!(pictures[index], draw(&toy, &["--scheduler", name]).0, "{name} twice");
        assert!(!pictures[..index].contains(&pictures[index]), "{name} draws what another one draws");
    }
    let other_seed = draw(&toy, &["--scheduler", "euler_a", "--seed", "1"]).0;
    assert_ne!(other_seed, pictures[3]);
    // 2. The default is the model's own, or DDIM where it is not known, which is said.
    let (own, told) = draw(&toy, &[]);
    assert!(own == pictures[1] && told.contains("pndm"), "{told}");
    let unknown = folder.path().join("unknown");
    copy_folder(&toy, &unknown);
    for config in ["scheduler/scheduler_config.json", "model_index.json"] {
        let config = unknown.join(config);
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace("PNDMScheduler", "UniPCMultistepScheduler")).unwrap();
    }
    let (instead, told) = draw(&unknown, &[]);
    assert!(told.contains("UniPCMultistepScheduler") && told.contains("ddim"), "{told}");
    assert_eq!(instead, pictures[0]);
    // 3. An unknown name is refused with those that are known.
    let refused = generate(&toy, &folder.path().join("none.png"), &["--scheduler", "heun"]);
    fails(&refused, 2, &["--scheduler", "heun", "dpm++_2m_karras", "euler_a", "lms"]);
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn openmp_threads_sleep_while_they_wait_unless_told_otherwise() {
    let variables = |command: Command| {
        let (running, _) = announced(command);
        let text = std::fs::read_to_string(format!("/proc/{}/environ", running.0.id())).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect::<Vec<_>>()
    };
    let state = tempfile::tempdir().unwrap();
    assert_eq!(variables(daemon(state.path())), ["GOMP_SPINCOUNT=4000"]);
    let mut told = daemon(state.path());
    told.env("OMP_WAIT_POLICY", "active");
    assert_eq!(variables(told), ["OMP_WAIT_POLICY=active"], "left as it was");
}

/// The processors that each thread of this name may run on.
fn processors_of(process: u32, name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let read = |task: &Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    tasks
        .filter(|task| read(&task.path(), "comm").trim() == name)
        .filter_map(|task| {
            let status = read(&task.path(), "status");
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(list.trim().to_owned())
        })
        .collect()
}

/// Cores that workers of this machine have, by their first processors.
fn claimed_cores() -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let claimed = sockets.lines().filter_map(|line| line.split_once("@ringtune-worker/core/"));
    claimed.map(|(_, core)| core.trim().to_owned()).collect()
}

#[test]
fn workers_of_one_machine_compute_on_cores_of_their_own() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let whole = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    if std::thread::available_parallelism().unwrap().get() < 2 {
        eprintln!("SKIPPED: one processor");
        return;
    }
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |state: &Path, share: &str| {
        let mut command = daemon(state);
        command.args(["--share", share, "--threads", "1"]);
        announced(command).0
    };
    let mut claimed = claimed_cores();
    let workers = [start(first.path(), "1/2"), start(second.path(), "2/2")];
    claimed.extend(claimed_cores());
    let places = workers.each_ref().map(|worker| processors_of(worker.0.id(), "engine"));
    // A worker of another test may have had a core when one was claimed: then the system decides.
    for place in &places {
        let [place] = place.as_slice() else { panic!("{places:?}") };
        assert!(
            !claimed.is_empty() && (place == whole || claimed.contains(place)),
            "{places:?}, {claimed:?}"
        );
    }
    assert!(places[0] != places[1] || places[0][0] == whole, "{places:?}");
    // What does not compute runs anywhere.
    for worker in &workers {
        let others = processors_of(worker.0.id(), "tokio-rt-worker");
        assert!(!others.is_empty() && others.iter().all(|place| place == whole), "{others:?}");
    }
}
