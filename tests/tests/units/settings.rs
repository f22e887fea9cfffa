//! `config check` and `--print-config` of the programs.

use anyhow::{Result, ensure};
use ringtune_tests::{Sandbox, places, process::finish};
use tokio::process::Command;

fn program(name: &str) -> Result<Command> {
    let mut command = Command::new(places::program(name)?);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("RINGTUNE__") {
            command.env_remove(variable);
        }
    }
    Ok(command)
}

#[tokio::test]
async fn the_examples_can_be_used_and_what_cannot_is_said_in_full() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let state = sandbox.path("new").to_string_lossy().into_owned();
    let examples = places::repository().join("deploy/examples");
    for (name, example) in [("ringtune-coordinator", "coordinator.toml"), ("ringtune-worker", "worker.toml")]
    {
        let example = examples.join(example).to_string_lossy().into_owned();
        let check = ["config", "check", "--state-dir", &state, "--config"];
        let good = finish(program(name)?.args(check).arg(&example)).await?.expect_code(0)?;
        let said = "1 setting is given (1 from the command line); all others have their defaults\n";
        ensure!(good.stdout == said, "{good:?}");

        let bad = sandbox.path("bad.toml");
        std::fs::write(&bad, "[log]\nfilter = 'a=b=c'\nformt = 'json'\n[grpc]\nlisten = 7\n")?;
        let bad = bad.to_string_lossy().into_owned();
        finish(program(name)?.args(check).arg(&bad)).await?.expect_code(2)?.expect_said(&[
            &format!("{bad}, line 2: log.filter: \"a=b=c\" is not a filter"),
            &format!("{bad}, line 3: log.formt: unknown setting; did you mean \"log.format\"?"),
            &format!("{bad}, line 5: grpc.listen: got 7; allowed: a text in quotes"),
        ])?;
        let none = sandbox.path("none.toml").to_string_lossy().into_owned();
        finish(program(name)?.args(check).arg(&none)).await?.expect_code(2)?.expect_said(&[&none])?;

        let printed = finish(
            program(name)?
                .args(["--print-config", "--state-dir", &state, "--config", &example])
                .env("RINGTUNE__LOG__FORMAT", "json"),
        )
        .await?
        .expect_code(0)?;
        for line in [
            format!("state_dir = \"{state}\"  # command line"),
            "format = \"json\"  # environment variable RINGTUNE__LOG__FORMAT".to_owned(),
            "filter = \"info\"  # default".to_owned(),
        ] {
            ensure!(printed.stdout.lines().any(|found| found == line), "{line}\n{}", printed.stdout);
        }
        // What is printed is a settings file, with the same settings.
        let file = sandbox.path("printed.toml");
        std::fs::write(&file, &printed.stdout)?;
        let again = finish(program(name)?.arg("--print-config").arg("--config").arg(&file)).await?;
        let settings = |text: &str| toml::from_str::<toml::Table>(text);
        ensure!(settings(&again.expect_code(0)?.stdout)? == settings(&printed.stdout)?);
    }
    Ok(())
}

#[tokio::test]
async fn a_join_token_is_looked_at_and_never_shown() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let state = sandbox.path("new").to_string_lossy().into_owned();
    let token = sandbox.path("token");
    let check = |token: &std::path::Path| -> Result<Command> {
        let mut command = program("ringtune-worker")?;
        command.args(["config", "check", "--state-dir", &state, "--join-file"]).arg(token);
        Ok(command)
    };
    std::fs::write(&token, "rtj1.a-secret-that-is-no-token")?;
    let wrong = finish(&mut check(&token)?).await?.expect_code(2)?.expect_said(&["--join-file: "])?;
    ensure!(!wrong.stderr.contains("a-secret"), "{}", wrong.stderr);
    std::fs::write(&token, "\n")?;
    finish(&mut check(&token)?).await?.expect_code(0)?;
    std::fs::remove_file(&token)?;
    finish(&mut check(&token)?).await?.expect_code(2)?.expect_said(&[&token.to_string_lossy()])?;
    Ok(())
}
