//! Man pages and completions of the programs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Sandbox, places, process::finish, tools::has};
use tokio::process::Command;

const PROGRAMS: [&str; 3] = ["ringtune", "ringtune-coordinator", "ringtune-worker"];

/// The subcommands that `--help` shows.
async fn shown(program: &str, path: &[String]) -> Result<Vec<String>> {
    let help = finish(Command::new(places::program(program)?).args(path).arg("-h")).await?.expect_code(0)?;
    let Some((_, commands)) = help.stdout.split_once("\nCommands:\n") else { return Ok(Vec::new()) };
    let names = commands.lines().take_while(|line| !line.is_empty()).filter_map(|line| {
        // A name stands two spaces from the edge; what belongs to the one above, further in.
        let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?;
        name.split_whitespace().next().map(str::to_owned)
    });
    Ok(names.filter(|name| name != "help").collect())
}

/// Whether a page of `ringtune` tells of a program of the worker, whose own page has its options.
fn passes_on(program: &str, path: &[String]) -> bool {
    program == "ringtune"
        && ["generate", "pipeline", "prepare-text", "doctor"].map(str::to_owned).contains(&path[0])
}

#[tokio::test]
async fn every_subcommand_has_a_page_that_groff_reads() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let folder = sandbox.path("man");
    let mut pages = Vec::new();
    for program in PROGRAMS {
        finish(Command::new(places::program(program)?).arg("man").arg(&folder)).await?.expect_code(0)?;
        let section = if program == "ringtune" { 1 } else { 8 };
        let mut open = vec![Vec::new()];
        while let Some(path) = open.pop() {
            let name: Vec<&str> = std::iter::once(program).chain(path.iter().map(String::as_str)).collect();
            pages.push(format!("{}.{section}", name.join("-")));
            if path.is_empty() || !passes_on(program, &path) {
                for inner in shown(program, &path).await? {
                    open.push([path.clone(), vec![inner]].concat());
                }
            }
        }
    }
    let found = ringtune_tests::files::names_in(&folder)?;
    pages.sort();
    ensure!(found == pages, "found {found:?}\nwanted {pages:?}");
    ensure!(pages.len() > 30, "{pages:?}");
    if has(&["groff"], "groff")? {
        for page in pages {
            let read =
                finish(Command::new("groff").args(["-man", "-Tutf8", "-ww"]).arg(folder.join(&page))).await?;
            ensure!(read.code == Some(0) && read.stderr.is_empty(), "{page}: {}", read.stderr);
        }
    }
    Ok(())
}

#[tokio::test]
async fn shells_take_the_completions() -> Result<()> {
    let sandbox = Sandbox::new()?;
    for program in PROGRAMS {
        for shell in ["bash", "zsh", "fish"] {
            let text = finish(Command::new(places::program(program)?).args(["completions", shell])).await?;
            let text = text.expect_code(0)?.stdout;
            ensure!(text.contains(program), "{shell}: {text}");
            let file = sandbox.path(&format!("{program}.{shell}"));
            fs::write(&file, text)?;
            if Path::new("/usr/bin").join(shell).exists() {
                finish(Command::new(shell).arg("-n").arg(&file)).await?.expect_code(0)?;
            }
        }
        // What bash would offer behind the program's name.
        let script = format!(
            "source {}; COMP_WORDS=({program} ''); COMP_CWORD=1; _{} {program} '' {program}; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            sandbox.path(&format!("{program}.bash")).display(),
            program.replace('-', "__")
        );
        let offered = finish(Command::new("bash").args(["-c", &script])).await?;
        let command = shown(program, &[]).await?.first().cloned().context("a subcommand")?;
        ensure!(offered.stdout.lines().any(|line| line == command), "{program}: {offered:?}");
    }
    Ok(())
}
