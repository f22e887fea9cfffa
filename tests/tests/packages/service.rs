//! A service of a node, started as systemd would start it: by what the installed unit says.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        net::UnixDatagram,
    },
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use ringtune_tests::{
    process::send_signal,
    unit_file::{self, Specifiers, Unit},
};
use rustix::process::Signal;
use tokio::process::Child;

use crate::root::Root;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// A service that runs.
pub(crate) struct Service {
    child: Child,
    unit: Unit,
    log: PathBuf,
}

impl Service {
    /// Starts what `name` in the node's /usr/lib/systemd/system and its drop-ins say, and waits until it is ready.
    pub(crate) async fn start(root: &Root, name: &str) -> Result<Self> {
        let mut text = fs::read_to_string(root.path("/usr/lib/systemd/system").join(name))?;
        for drop_in in fs::read_dir(root.path(&format!("/etc/systemd/system/{name}.d"))).into_iter().flatten()
        {
            text += &fs::read_to_string(drop_in?.path())?;
        }
        let unit = Unit::parse(&text, Specifiers::of(""))?;
        // 1. Its user, folders and credentials.
        let user = unit.one("User")?;
        let (owner, group) = root.user(&user)?;
        for (key, base) in [("StateDirectory", "/var/lib"), ("CacheDirectory", "/var/cache")] {
            for folder in unit.all(key)? {
                root.folder_of(&format!("{base}/{folder}"), &user)?;
            }
        }
        for credential in unit.all("LoadCredential")? {
            let (name, from) = credential.split_once(':').context("NAME:PATH")?;
            let text = fs::read_to_string(root.path(from)).unwrap_or_else(|_| "\n".to_owned());
            let inside = format!("{}/{name}", Specifiers::of("").credentials);
            root.write(&inside, &text)?;
            chown(root.path(&inside), Some(owner), Some(group))?;
        }
        // 2. The manager's ear.
        let ear = root.path("/run/notify");
        let _ = fs::remove_file(&ear);
        let manager = UnixDatagram::bind(&ear)?;
        manager.set_nonblocking(true)?;
        fs::set_permissions(&ear, fs::Permissions::from_mode(0o666))?;
        let mut environment = unit.environment()?;
        environment.push(("NOTIFY_SOCKET".to_owned(), "/run/notify".to_owned()));
        // 3. The program, as its user.
        let user = [format!("--reuid={owner}"), format!("--regid={group}")];
        let mut words = vec!["setpriv".to_owned()];
        words.extend(user);
        words.extend(["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--"].map(str::to_owned));
        words.extend(unit_file::words(&unit.one("ExecStart")?, &environment)?);
        let log = root.path(&format!("/var/log/{name}.log"));
        let said = fs::File::options().create(true).append(true).open(&log)?;
        let mut command = root.command(&words);
        command.envs(environment).stdout(Stdio::null()).stderr(said);
        let mut service = Self { child: command.spawn()?, unit, log };
        let limit = service.unit.seconds("TimeoutStartSec")?;
        let ready = tokio::time::timeout(limit, service.ready(&manager)).await;
        ready.context("it is not ready in time").and_then(|ready| ready).with_context(|| service.log())?;
        Ok(service)
    }

    async fn ready(&mut self, manager: &UnixDatagram) -> Result<()> {
        let mut buffer = [0; 4096];
        loop {
            while let Ok(length) = manager.recv(&mut buffer) {
                if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == "READY=1") {
                    return Ok(());
                }
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended: {status}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops it, as an upgrade of its package does.
    pub(crate) async fn stop(mut self) -> Result<()> {
        send_signal(&self.child, Signal::TERM)?;
        let ended = tokio::time::timeout(self.unit.seconds("TimeoutStopSec")?, self.child.wait()).await;
        let status = ended.context("it does not end in time")??;
        ensure!(status.code() == Some(0), "{status}\n{}", self.log());
        Ok(())
    }

    /// Whether it runs the file that is installed now.
    pub(crate) fn runs_what_is_installed(&self) -> Result<bool> {
        let process = self.child.id().context("it runs")?;
        let program = fs::read_link(format!("/proc/{process}/exe"))?;
        Ok(!program.to_string_lossy().ends_with(" (deleted)"))
    }
}
