//! The command as a program: what it refuses before anything starts, and with which exit code.

#![allow(clippy::expect_used, reason = "a test may end with a panic")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

const JOB: &str = r#"
kind = "textual_inversion"
name = "star"
[model]
base = "toy-sd"
[data]
images = "pictures"
[train]
placeholder_token = "<star>"
initializer_token = "star"
resolution = 64
[cluster]
world_size = 4
min_world_size = 2
"#;

struct Folder(tempfile::TempDir);

impl Folder {
    /// A folder with job.toml, one picture and a folder for a model.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::create_dir(folder.path().join("toy-sd")).expect("made");
        fs::create_dir(folder.path().join("pictures")).expect("made");
        fs::write(folder.path().join("pictures/a.png"), "not looked into").expect("written");
        let folder = Self(folder);
        folder.write_job(JOB);
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write_job(&self, text: &str) {
        fs::write(self.path().join("job.toml"), text).expect("written");
    }

    fn ringtune(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ringtune"))
            .args(arguments)
            .current_dir(self.path())
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("RINGTUNE__STORAGE__STATE_DIR", self.path().join("coordinator"))
            .env_remove("RINGTUNE_COORDINATOR")
            .env_remove("RINGTUNE_CREDENTIALS")
            .env_remove("RINGTUNE_TOKEN")
            .output()
            .expect("the command starts")
    }

    /// The command must refuse its input as wrong usage, and name all of `parts`.
    fn refused(&self, arguments: &[&str], parts: &[&str]) {
        let output = self.ringtune(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "data was printed");
        for part in parts {
            assert!(stderr.contains(part), "{part:?} is missing in: {stderr}");
        }
        assert!(!self.path().join("state").exists(), "something was started");
        assert!(!self.path().join("ringtune-out").exists(), "an output folder was made");
    }
}

#[test]
fn the_job_is_printed_with_every_default_and_can_be_read_again() {
    let folder = Folder::new();
    let printed = folder.ringtune(&["run", "--print-job", "job.toml"]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let text = String::from_utf8(printed.stdout).expect("UTF-8");
    for line in
        ["lr_scheduler = \"constant\"", "lr_warmup_steps = 500", "scale_lr = false", "min_world_size = 2"]
    {
        assert!(text.contains(line), "{line} is missing in: {text}");
    }
    let model = folder.path().join("toy-sd");
    assert!(text.contains(&*model.to_string_lossy()), "the model's path is not absolute: {text}");
    folder.write_job(&text);
    let again = folder.ringtune(&["run", "--print-job", "job.toml"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), text);
    let json = folder.ringtune(&["run", "--print-job", "--output", "json", "job.toml"]);
    assert_eq!(json.stdout.iter().filter(|byte| **byte == b'\n').count(), 1, "one object a line");
}

#[test]
fn settings_of_the_command_line_replace_those_of_the_job() {
    let folder = Folder::new();
    let printed = |arguments: &[&str]| {
        let output = folder.ringtune(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let set =
        ["--set", "train.learning_rate=1e-3", "--set=train.templates=[\"a {}\"]", "--set", "name=other"];
    let file = printed(&[&["run", "--print-job", "job.toml"], &set[..]].concat());
    let line = "--pretrained_model_name_or_path toy-sd --train_data_dir pictures --placeholder_token <a> --initializer_token b";
    let translated = printed(&[&["run", "--print-job", "--from-diffusers-args", line], &set[..]].concat());
    for text in [&file, &translated] {
        for line in ["learning_rate = 0.001", "templates = [\"a {}\"]", "name = \"other\""] {
            assert!(text.contains(line), "{line} is missing in: {text}");
        }
    }
    assert!(file.contains("resolution = 64") && translated.contains("resolution = 512"));
    let wrong = ["train.learning_rate", "fast", "(from --set train.learning_rate=fast)"];
    folder.refused(&["run", "job.toml", "--set", "train.learning_rate=fast"], &wrong);
    folder.refused(&["submit", "job.toml", "--set", "train.learning_rate=fast"], &wrong);
    folder.refused(&["run", "--from-diffusers-args", line, "--set", "train.learning_rate=fast"], &wrong);
    folder.refused(&["run", "job.toml", "--set", "seed"], &["--set", "KEY=VALUE", "train.seed=7"]);
}

#[test]
fn a_model_that_is_not_there_is_said_before_anything_starts() {
    let folder = Folder::new();
    fs::remove_dir(folder.path().join("toy-sd")).expect("removed");
    let model = folder.path().join("toy-sd").display().to_string();
    let says = format!("model.base: {model}: there is no such folder or file");
    folder.refused(&["run", "job.toml"], &[&says, "the job file's folder"]);
    let elsewhere = ["run", "job.toml", "--set", "model.base=/nowhere/sd"];
    folder.refused(&elsewhere, &["model.base: /nowhere/sd: there is no such folder or file"]);
    // What is only checked is shown all the same.
    let shown = folder.ringtune(&["run", "--print-job", "job.toml"]);
    assert_eq!(shown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&shown.stderr).contains(&says), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("resolution = 64"), "{shown:?}");
    let pictures = ["run", "--print-job", "job.toml", "--set", "data.images=nowhere"];
    let shown = folder.ringtune(&pictures);
    assert_eq!(shown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&shown.stderr).contains("data.images: cannot read"), "{shown:?}");
}

#[test]
fn a_variable_with_a_wrong_address_is_named() {
    let folder = Folder::new();
    let ask = |arguments: &[&str], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringtune"));
        command.args(arguments).current_dir(folder.path()).env("RINGTUNE_COORDINATOR", variable);
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = ask(&["list"], "ftp://a");
    assert!(text.starts_with("error: RINGTUNE_COORDINATOR: \"ftp://a\""), "{text}");
    let text = ask(&["list", "--coordinator", "ftp://b"], "ftp://a");
    assert!(text.contains("--coordinator") && !text.contains("RINGTUNE_COORDINATOR:"), "{text}");
}

#[test]
fn whose_a_job_is_and_how_urgent_is_shown_and_checked() {
    let folder = Folder::new();
    folder.write_job(&format!("{JOB}\n[queue]\nowner = \"ada\"\nlabels = {{ project = \"star\" }}\n"));
    let more = ["--set", "queue.priority=5", "--label", "project=other", "--label", "a.b/c="];
    let printed = folder.ringtune(&[&["run", "--print-job", "job.toml"], &more[..]].concat());
    let text = String::from_utf8(printed.stdout).expect("UTF-8");
    let queue =
        "[queue]\nowner = \"ada\"\npriority = 5\n\n[queue.labels]\n\"a.b/c\" = \"\"\nproject = \"other\"\n";
    assert!(text.ends_with(queue), "{text}");
    folder.write_job(&text);
    let again = folder.ringtune(&["run", "--print-job", "job.toml"]);
    assert_eq!(String::from_utf8_lossy(&again.stdout), text);
    let wrong = ["queue.priority", "got -1; allowed: 0 to 1000", "(from --set queue.priority=-1)"];
    folder.refused(&["run", "job.toml", "--set", "queue.priority=-1"], &wrong);
    folder.refused(&["submit", "job.toml", "--set", "queue.priority=-1"], &wrong);
    folder.refused(&["submit", "job.toml", "--label", "Team=red"], &["--label", "\"Team\"", "a-z"]);
    folder.refused(&["list", "--label", "team"], &["--label", "KEY=VALUE"]);
    let many: Vec<String> = (0..33).map(|number| format!("--label=n{number}=")).collect();
    let arguments: Vec<&str> =
        ["run", "job.toml"].into_iter().chain(many.iter().map(String::as_str)).collect();
    folder.refused(&arguments, &["queue.labels", "allowed: at most 32"]);
}

#[test]
fn every_mistake_of_a_job_file_is_named_at_once() {
    let folder = Folder::new();
    folder.write_job(&JOB.replace(
        "resolution = 64",
        "resolution = 0\nrezolution = 64\nmax_train_steps = -3\nlearning_rate = \"fast\"\nlr_scheduler = \"none\"",
    ));
    let fields =
        ["resolution", "rezolution", "max_train_steps", "-3", "learning_rate", "lr_scheduler", "cosine"];
    folder.refused(&["run", "job.toml"], &fields);
    folder.refused(&["run", "--print-job", "job.toml"], &fields);
    folder.refused(&["submit", "job.toml"], &fields);
}

#[test]
fn a_file_that_is_no_toml_or_is_missing_is_named() {
    let folder = Folder::new();
    folder.write_job("kind = ");
    folder.refused(&["run", "job.toml"], &["job.toml"]);
    folder.refused(&["run", "other.toml"], &["other.toml"]);
}

#[test]
fn image_folders_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    let pictures = folder.path().join("pictures");
    fs::rename(pictures.join("a.png"), pictures.join("a.gif")).expect("renamed");
    folder.refused(&["run", "job.toml"], &["data.images", "a.gif"]);
    fs::remove_file(pictures.join("a.gif")).expect("removed");
    folder.refused(&["run", "job.toml"], &["data.images", "empty"]);
    fs::remove_dir(&pictures).expect("removed");
    folder.refused(&["run", "job.toml"], &["data.images", "pictures"]);
    folder.refused(&["submit", "job.toml"], &["data.images", "pictures"]);
}

#[test]
fn fewer_workers_than_the_smallest_ring_are_refused() {
    let folder = Folder::new();
    folder.refused(&["run", "job.toml", "--workers", "1"], &["--workers 1", "min_world_size = 2"]);
    folder.refused(&["run", "job.toml", "--workers", "0"], &["--workers 0"]);
    folder.refused(&["run", "job.toml", "--workers", "100000"], &["100000"]);
}

#[test]
fn what_does_not_exist_is_wrong_usage() {
    let folder = Folder::new();
    folder.refused(&["halt", "x"], &["halt"]);
    folder.refused(&["list", "--coordinator", "ftp://node"], &["ftp://", "https://HOST:PORT"]);
    let ways = ["ringtune login https://node:7070", "--credentials", "RINGTUNE_TOKEN", "sudo ringtune"];
    folder.refused(&["list", "--coordinator", "node"], &ways);
    folder.refused(&["list", "--coordinator", "node", "--credentials", "none"], &["none", "identity.pem"]);
    folder.refused(&["login", "localhost"], &["encrypts nothing", "ringtune login https://localhost:7070"]);
    folder.refused(&["logout"], &["no login"]);
}

#[test]
fn a_coordinator_that_is_not_there_has_an_exit_code_of_its_own() {
    let folder = Folder::new();
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("address").to_string();
    drop(listener);
    for arguments in [vec!["list"], vec!["workers"], vec!["submit", "job.toml"]] {
        let output = folder.ringtune(&[&arguments[..], &["--coordinator", &address]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {stderr}");
        assert!(stderr.contains(&address) && stderr.contains("ringtune up"), "{stderr}");
    }
}

#[test]
fn help_teaches_by_example() {
    let folder = Folder::new();
    let help = folder.ringtune(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success());
    for command in [
        "run", "up", "submit", "list", "status", "watch", "cancel", "workers", "fetch", "generate", "doctor",
        "login", "logout", "whoami", "token", "cert", "ca", "pause", "resume", "order", "fork", "queue",
        "limits",
    ] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is missing in: {text}");
    }
    assert!(text.contains("ringtune run dicoo.toml") && text.contains("Exit codes"), "{text}");
    for (command, says) in [
        (vec!["login", "--help"], "ringtune login https://head-node:7070"),
        (vec!["token", "create", "--help"], "ringtune token create --role worker"),
        (vec!["whoami", "--help"], "3. the login at that coordinator"),
        (vec!["cert", "revoke", "--help"], "ringtune cert revoke --worker WORKER"),
    ] {
        let help = folder.ringtune(&command);
        assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains(says), "{command:?}");
    }
}

#[test]
fn a_command_line_of_diffusers_script_is_a_job() {
    let folder = Folder::new();
    let line = "accelerate launch --num_processes=4 textual_inversion.py --pretrained_model_name_or_path toy-sd \
                --train_data_dir=pictures --placeholder_token '<star>' --initializer_token star --resolution 64 \
                --report_to wandb";
    let job = folder.ringtune(&["run", "--print-job", "--from-diffusers-args", line]);
    assert!(job.status.success());
    assert!(String::from_utf8_lossy(&job.stderr).contains("--report_to is left out"));
    // What it prints is the job file: a file of it stands for the same job.
    folder.write_job(&String::from_utf8_lossy(&job.stdout));
    assert_eq!(folder.ringtune(&["run", "--print-job", "job.toml"]).stdout, job.stdout);
    assert!(String::from_utf8_lossy(&job.stdout).contains("world_size = 4"));

    folder.refused(&["run", "--from-diffusers-args", "--resolution big --foo"], &["--resolution", "--foo"]);
    // What is refused, and what is not allowed, at once.
    let both = format!("{line} --push_to_hub --no_safe_serialization --mixed_precision fp16 --num_vectors 0");
    let says = ["--push_to_hub", "--no_safe_serialization", "train.mixed_precision", "train.num_vectors"];
    folder.refused(&["run", "--from-diffusers-args", &both], &says);
    let few = "--resolution 100 --num_vectors 0";
    folder.refused(&["run", "--from-diffusers-args", few], &["train.num_vectors", "train.placeholder_token"]);
    folder.refused(&["run", "job.toml", "--from-diffusers-args", line], &["JOB.toml", "cannot be used with"]);
    folder.refused(&["run"], &["JOB.toml"]);
}

#[test]
fn a_command_line_of_kohyas_script_is_a_job_too() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("train")).expect("made");
    fs::rename(folder.path().join("pictures"), folder.path().join("train/10_toy dog")).expect("moved");
    let line = "accelerate launch sd-scripts/train_network.py --pretrained_model_name_or_path toy-sd --train_data_dir=train \
                --network_module networks.lora --network_dim=8 --resolution 64,64 --network_train_unet_only --output_name dog";
    let job = folder.ringtune(&["run", "--print-job", "--from-diffusers-args", line]);
    assert!(job.status.success(), "{}", String::from_utf8_lossy(&job.stderr));
    let text = String::from_utf8_lossy(&job.stdout);
    for written in
        ["kind = \"lora\"", "name = \"dog\"", "rank = 8", "repeats = 10", "instance_prompt = \"toy dog\""]
    {
        assert!(text.contains(written), "{written} is missing in: {text}");
    }
    let wrong = format!("{line} --masked_loss --caption_dropout_rate=2");
    let says = ["train_network.py:", "--masked_loss needs --conditioning_data_dir", "train.caption_dropout"];
    folder.refused(&["run", "--from-diffusers-args", &wrong], &says);
    let other = line.replace("train_network", "sdxl_train_network");
    folder.refused(
        &["run", "--from-diffusers-args", &other],
        &["sdxl_train_network.py is not", "train_network.py"],
    );
}
