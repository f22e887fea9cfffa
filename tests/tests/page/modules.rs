//! The page's pure modules, tested by node's own runner.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{places, process::finish, tools};
use tokio::process::Command;

fn files(folder: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let folder = places::repository().join("coordinator/web/page").join(folder);
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.retain(|path| path.to_string_lossy().ends_with(ending));
    found.sort();
    Ok(found)
}

#[tokio::test]
async fn pass_their_own_tests() -> Result<()> {
    let Some(node) = tools::find("node", "nodejs")? else { return Ok(()) };
    let tests = files("tests", ".test.js")?;
    ensure!(tests.len() >= 10, "{tests:?}");
    let run = finish(Command::new(node).arg("--test").args(&tests)).await?;
    ensure!(run.code == Some(0), "{}\n{}", run.stdout, run.stderr);
    Ok(())
}

/// Modules that only compute: node tests them, and nothing in them depends on what a page shows.
const PURE: [&str; 16] = [
    "chart_scale",
    "compare",
    "eta",
    "format",
    "job_model",
    "jobs",
    "previews",
    "results",
    "ring",
    "routes",
    "series",
    "smoothing",
    "stream",
    "texts",
    "words",
    "workers",
];

#[test]
fn that_compute_touch_no_page() -> Result<()> {
    for path in files("", ".js")? {
        let name = path.file_stem().context("a name")?.to_string_lossy().into_owned();
        if !PURE.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let touched = ["document", "window.", "fetch(", "localStorage", "Date.now"]
            .iter()
            .find(|word| text.contains(**word));
        ensure!(touched.is_none(), "{name}.js names {touched:?}");
        let imports = text
            .lines()
            .filter_map(|line| line.strip_prefix("import ")?.split("\"./").nth(1)?.strip_suffix(".js\";"));
        for import in imports {
            ensure!(PURE.contains(&import), "{name}.js, which only computes, imports {import}.js");
        }
    }
    Ok(())
}

/// A browser need not read one module to learn of the next.
#[test]
fn are_all_asked_for_at_once() -> Result<()> {
    let index = std::fs::read_to_string(places::repository().join("coordinator/web/page/index.html"))?;
    for path in files("", ".js")? {
        let name = path.file_name().context("a name")?.to_string_lossy().into_owned();
        ensure!(index.contains(&format!("\"/assets/{name}\"")), "index.html does not name {name}");
    }
    Ok(())
}

/// Somebody's text is never markup, whatever a later change does: the words that could make it so are not there.
#[test]
fn make_no_markup_of_texts() -> Result<()> {
    let all = files("", ".js")?;
    ensure!(all.len() >= 20, "{all:?}");
    let words = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ];
    for path in all {
        let text = std::fs::read_to_string(&path)?;
        let found = words.iter().find(|word| text.contains(**word));
        ensure!(found.is_none(), "{} has {found:?}", path.display());
        ensure!(
            text.starts_with("// ") && text.lines().count() <= 500,
            "{} says what it is, in 500 lines",
            path.display()
        );
        ensure!(
            !text.contains("http:") || text.contains("www.w3.org"),
            "{} names another place",
            path.display()
        );
    }
    Ok(())
}
