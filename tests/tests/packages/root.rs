//! A clean Debian in a folder, on a network of its own, in which packages are installed as on a node.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    places,
    process::{Finished, finish},
};
use tempfile::TempDir;
use tokio::process::Command;

/// Mount point of the machine's pictures, models and jobs.
pub(crate) const FIXTURES: &str = "/srv/ringtune/models";
/// Script that mounts a command's needs inside; its last line becomes the command.
const ENTER: &str = r#"
root="$1"; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$RINGTUNE_FIXTURES" "$root/srv/ringtune/models"
exec chroot "$root" "$@"
"#;

/// A node.
pub(crate) struct Root {
    folder: TempDir,
    /// Wrapper that puts a command on the node's network; empty: the machine's.
    network: Vec<String>,
}

impl Root {
    /// A clean one. `network`: what runs a command there.
    pub(crate) async fn new(archive: &Path, network: Vec<String>) -> Result<Self> {
        // Sockets have short paths.
        let folder = tempfile::Builder::new().prefix("rt-").tempdir_in("/tmp")?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--numeric-owner", "--file"]).arg(archive).arg("--directory");
        finish(unpack.arg(folder.path())).await?.expect_code(0)?;
        let root = Self { folder, network };
        fs::create_dir_all(root.path(FIXTURES))?;
        // Names are found as on the machine.
        fs::copy("/etc/resolv.conf", root.path("/etc/resolv.conf"))?;
        fs::copy("/etc/hosts", root.path("/etc/hosts"))?;
        Ok(root)
    }

    /// Path of a node's file on this machine.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside.trim_start_matches('/'))
    }

    /// A command on the node, in its network. It keeps its process id.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        self.enter(&self.network, words)
    }

    fn enter<S: AsRef<OsStr>>(&self, network: &[String], words: impl IntoIterator<Item = S>) -> Command {
        let mut all: Vec<String> = network.to_vec();
        all.extend(["unshare", "--mount", "sh", "-ec", ENTER, "enter"].map(str::to_owned));
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).arg(self.folder.path()).args(words);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .env("RINGTUNE_FIXTURES", places::repository().join("tests/fixtures"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command of root's to its end.
    pub(crate) async fn run(&self, words: &[&str]) -> Result<Finished> {
        let mut command = self.command(words);
        command.env("HOME", "/root");
        finish(&mut command).await
    }

    /// Installs packages with apt, which gets from Debian what they depend on.
    pub(crate) async fn install(&self, packages: &[PathBuf]) -> Result<Finished> {
        let mut names = Vec::new();
        for package in packages {
            let name = package.file_name().context("a package's name")?.to_string_lossy().into_owned();
            fs::copy(package, self.path(&format!("/root/{name}")))?;
            names.push(format!("/root/{name}"));
        }
        self.apt(&["update", "--quiet"]).await?.expect_code(0)?;
        let install = ["install", "--yes", "--quiet", "--no-install-recommends", "--reinstall"];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let done = self.apt(&[&install[..], &names].concat()).await?.expect_code(0)?;
        self.apt(&["clean"]).await?;
        for name in names {
            fs::remove_file(self.path(name))?;
        }
        Ok(done)
    }

    /// apt, on the machine's network.
    pub(crate) async fn apt(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = self.enter(&[], ["apt-get"].iter().chain(arguments));
        finish(command.env("DEBIAN_FRONTEND", "noninteractive").env("HOME", "/root")).await
    }

    /// Replaces a setting's line of a file that is one: as an editor would.
    pub(crate) fn write(&self, inside: &str, text: &str) -> Result<()> {
        let path = self.path(inside);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text).with_context(|| format!("write {inside}"))
    }

    /// The user and group ids of a user of the node.
    pub(crate) fn user(&self, name: &str) -> Result<(u32, u32)> {
        let users = fs::read_to_string(self.path("/etc/passwd"))?;
        let line = users.lines().find(|line| line.split(':').next() == Some(name));
        let fields: Vec<&str> = line.with_context(|| format!("no user {name}"))?.split(':').collect();
        Ok((fields.get(2).context("uid")?.parse()?, fields.get(3).context("gid")?.parse()?))
    }

    /// A folder that belongs to a user of the node.
    pub(crate) fn folder_of(&self, inside: &str, user: &str) -> Result<()> {
        let (owner, group) = self.user(user)?;
        let path = self.path(inside);
        fs::create_dir_all(&path)?;
        chown(&path, Some(owner), Some(group))?;
        ensure!(path.is_dir());
        Ok(())
    }
}
