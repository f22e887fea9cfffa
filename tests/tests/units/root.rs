//! A root in which a service is started as systemd would: the unit's user, folders, environment and command line, read from
//! the unit itself, in mount and network namespaces of its own.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox, places,
    process::finish,
    unit_file::{self, Unit},
};
use tokio::process::{Child, Command};

use crate::can_make_roots;

/// The credentials of a service, beside what `%d` is.
const CREDENTIALS: &str = "/run/credentials/unit";

/// Folders of the host that are mounted.
const LENT: [&str; 3] = ["usr", "proc", "dev"];

/// A root made of the host's files and our programs.
pub(crate) struct Root {
    sandbox: Sandbox,
    /// Folders of libraries outside `/usr`, such as libtorch's.
    libraries: BTreeSet<PathBuf>,
}

impl Root {
    /// A root with users, folders and settings as a package would install them; none where none can be made.
    pub(crate) async fn new() -> Result<Option<Self>> {
        if !can_make_roots()? {
            return Ok(None);
        }
        let sandbox = Sandbox::new()?;
        let root = sandbox.path("root");
        for folder in
            ["usr", "proc", "dev", "tmp", "run/credentials/unit", "var/lib", "var/cache", "srv", "root"]
        {
            fs::create_dir_all(root.join(folder))?;
        }
        for folder in ["etc/ringtune", "etc/sysusers.d", "etc/tmpfiles.d"] {
            fs::create_dir_all(root.join(folder))?;
        }
        for link in ["bin", "lib", "lib64", "sbin"] {
            std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link))?;
        }
        let here = places::repository().join("deploy");
        for name in ["coordinator.toml", "worker.toml", "worker-0.env"] {
            fs::copy(here.join("examples").join(name), root.join("etc/ringtune").join(name))?;
        }
        for name in [
            "sysusers.d/ringtune-coordinator.conf",
            "sysusers.d/ringtune-worker.conf",
            "tmpfiles.d/ringtune-worker.conf",
        ] {
            fs::copy(here.join("systemd").join(name), root.join("etc").join(name))?;
        }
        let flag = format!("--root={}", root.display());
        finish(Command::new("systemd-sysusers").arg(&flag)).await?.expect_code(0)?;
        finish(Command::new("systemd-tmpfiles").args(["--create", &flag])).await?.expect_code(0)?;
        // Others may pass through: the service is not root.
        fs::set_permissions(sandbox.folder(), fs::Permissions::from_mode(0o755))?;
        let libraries = libraries(&places::program("ringtune-worker")?).await?;
        Ok(Some(Self { sandbox, libraries }))
    }

    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.sandbox.path("root").join(inside.trim_start_matches('/'))
    }

    /// The user and group of a name, by the root's own list.
    fn user(&self, name: &str) -> Result<(u32, u32)> {
        let text = fs::read_to_string(self.path("/etc/passwd"))?;
        let line = text.lines().find(|line| line.split(':').next() == Some(name)).context("no such user")?;
        let number =
            |at: usize| line.split(':').nth(at).and_then(|text| text.parse().ok()).context("a number");
        Ok((number(2)?, number(3)?))
    }

    /// Starts a unit's `ExecStart`. `more`: variables beyond those that the unit has.
    pub(crate) async fn start(&self, unit: &Unit, more: &[(&str, &str)]) -> Result<Service> {
        // 1. Its folders and its credential.
        let user = self.user(&unit.one("User")?)?;
        let mut writable = Vec::new();
        for (key, base) in [("StateDirectory", "/var/lib"), ("CacheDirectory", "/var/cache")] {
            for name in unit.all(key)? {
                let folder = format!("{base}/{name}");
                fs::create_dir_all(self.path(&folder))?;
                std::os::unix::fs::chown(self.path(&folder), Some(user.0), Some(user.1))?;
                let mode = u32::from_str_radix(&unit.one(&format!("{key}Mode"))?, 8)?;
                fs::set_permissions(self.path(&folder), fs::Permissions::from_mode(mode))?;
                writable.push(folder);
            }
        }
        for credential in unit.all("LoadCredential")? {
            let (name, from) = credential.split_once(':').context("NAME:PATH")?;
            // What SetCredential= has in the place of a file that is not there is one empty line.
            let text = fs::read_to_string(self.path(from)).unwrap_or_else(|_| "\n".to_owned());
            let path = self.path(CREDENTIALS).join(name);
            fs::write(&path, text)?;
            std::os::unix::fs::chown(&path, Some(user.0), Some(user.1))?;
        }
        // 2. What it hears of its manager, and the manager's ear.
        let ear = self.path("/run/notify");
        let _ = fs::remove_file(&ear);
        let manager = UnixDatagram::bind(&ear)?;
        fs::set_permissions(&ear, fs::Permissions::from_mode(0o666))?;
        let mut environment = unit.environment()?;
        for file in unit.all("EnvironmentFile")? {
            let text = fs::read_to_string(self.path(&file)).with_context(|| file.clone())?;
            environment.extend(text.lines().filter_map(unit_file::assignment));
        }
        environment.push(("NOTIFY_SOCKET".to_owned(), "/run/notify".to_owned()));
        let patience = unit.seconds("WatchdogSec")?.as_micros();
        environment.push(("WATCHDOG_USEC".to_owned(), patience.to_string()));
        environment.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        // 3. The command, in its root.
        let line = unit_file::words(&unit.one("ExecStart")?, &environment)?;
        let log = self.sandbox.path("service.log");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--net", "--propagation", "private", "sh", "-euc", SCRIPT, "service"])
            .arg(self.path("/"))
            .arg(writable.join(" "))
            .arg(self.libraries.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(" "))
            .arg(places::program("ringtune-worker")?.parent().context("a folder")?)
            .args([user.0.to_string(), user.1.to_string()])
            .args(line)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(environment)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .kill_on_drop(true);
        Ok(Service { child: command.spawn()?, manager, log })
    }
}

/// `$1` root, `$2` folders that it may write, `$3` folders of libraries, `$4` our programs, `$5` and `$6` user and group; then
/// the command. What the host lends and the root itself are read-only, as with `ProtectSystem=strict`.
const SCRIPT: &str = r#"
root=${1%/} writable=$2 libraries=$3 programs=$4 user=$5 group=$6
shift 6
ip link set lo up
mkdir -p "$root/usr/bin"
mount --bind "$root" "$root"
mount -t tmpfs -o mode=755 none "$root/usr"
for folder in /usr/*; do
    mkdir -p "$root$folder"
    [ "$folder" = /usr/bin ] || mount --bind "$folder" "$root$folder"
done
for file in /usr/bin/taskset /usr/bin/setpriv /usr/bin/env; do cp "$file" "$root/usr/bin/"; done
for name in ringtune-coordinator ringtune-worker; do
    : > "$root/usr/bin/$name"
    mount --bind "$programs/$name" "$root/usr/bin/$name"
done
for folder in lib lib64; do
    [ -e "$root/usr/$folder" ] || ln -s "/$folder" "$root/usr/$folder"
done
# Before what may lie in it: a cache folder may be anywhere.
mount -t tmpfs -o mode=1777 none "$root/tmp"
for folder in $libraries; do
    mkdir -p "$root$folder"
    mount --bind "$folder" "$root$folder"
done
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
for folder in $writable; do mount --bind "$root$folder" "$root$folder"; done
mount -o remount,bind,ro "$root"
for folder in $writable; do mount -o remount,bind,rw "$root$folder"; done
exec chroot "$root" setpriv --reuid="$user" --regid="$group" --clear-groups --no-new-privs --bounding-set=-all -- "$@"
"#;

/// A service that runs.
pub(crate) struct Service {
    pub(crate) child: Child,
    manager: UnixDatagram,
    log: PathBuf,
}

impl Service {
    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Messages to the manager since the last look.
    pub(crate) fn heard(&self) -> Result<Vec<String>> {
        self.manager.set_nonblocking(true)?;
        let mut buffer = [0u8; 4096];
        let mut heard = Vec::new();
        while let Ok(length) = self.manager.recv(&mut buffer) {
            heard.push(String::from_utf8(buffer[..length].to_vec())?);
        }
        Ok(heard)
    }
}

/// Folders outside `/usr` from which a program's libraries come.
async fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let ldd = finish(Command::new("ldd").arg(program)).await?.expect_code(0)?;
    let mut folders = BTreeSet::new();
    for path in ldd.stdout.split_whitespace().filter(|word| word.starts_with('/')) {
        let path = fs::canonicalize(path)?;
        if !LENT.iter().any(|lent| path.starts_with(Path::new("/").join(lent))) {
            folders.insert(path.parent().context("a folder")?.to_owned());
        }
    }
    ensure!(folders.len() < 8, "{folders:?}");
    Ok(folders)
}
