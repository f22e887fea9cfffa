//! A cluster of Slurm on this machine: its controller, three nodes, and who may submit.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox,
    chaos::say,
    job::text,
    places,
    process::{Finished, finish},
    tools,
    wait::{SOON, until},
};
use tokio::process::{Child, Command};

/// The user "nobody", whom every Linux has.
const NOBODY: u32 = 65_534;
const PACKAGES: &str = "slurmctld slurmd slurm-client munge";
/// The nodes.
pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Slurm, and Ringtune's programs for a user that is not root; the worker needs no libtorch, which others may not read.
pub(crate) struct Site {
    sandbox: Sandbox,
    conf: PathBuf,
    setpriv: PathBuf,
    nodes: Vec<(&'static str, Child)>,
    _daemons: Vec<Child>,
}

impl Site {
    /// Starts it. None, which is said: this machine cannot.
    pub(crate) async fn start() -> Result<Option<Self>> {
        let programs =
            ["munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "srun", "sinfo"];
        if !tools::has(&programs, PACKAGES)? {
            return Ok(None);
        }
        let Some(setpriv) = tools::find("setpriv", "util-linux")? else { return Ok(None) };
        if !rustix::process::geteuid().is_root() {
            say("SKIPPED: Slurm's daemons need root here");
            return Ok(None);
        }
        // Not where files may be in memory, which no other node would see.
        let sandbox = Sandbox::within(Path::new("/var/tmp"))?;
        fs::set_permissions(sandbox.folder(), fs::Permissions::from_mode(0o755))?;
        let conf = configure(&sandbox)?;
        // 1. Who asks whom is said by munge.
        let key = sandbox.path("run/munge.key");
        fs::write(&key, [7; 128])?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let mut munge = daemon(&sandbox, "munged")?;
        munge.args(["--foreground", "--force"]);
        for (flag, file) in
            [("socket", "run/munge.sock"), ("key-file", "run/munge.key"), ("pid-file", "run/munged.pid")]
        {
            munge.arg(format!("--{flag}={}", text(&sandbox.path(file))));
        }
        munge.arg(format!("--log-file={}", text(&sandbox.path("log/munge.log"))));
        munge.arg(format!("--seed-file={}", text(&sandbox.path("run/munged.seed"))));
        let mut daemons = vec![munge.spawn().context("munged")?];
        let socket = sandbox.path("run/munge.sock");
        until("munge listens", SOON, || async { Ok(socket.exists().then_some(())) }).await?;
        // 2. Slurm.
        let mut controller = daemon(&sandbox, "slurmctld")?;
        controller.args(["-D", "-c", "-f"]).arg(&conf);
        daemons.push(controller.spawn().context("slurmctld")?);
        let mut site = Self { sandbox, conf, setpriv, nodes: Vec::new(), _daemons: daemons };
        for name in NODES {
            site.start_node(name)?;
        }
        // 3. Programs, a model and pictures for whoever is not root.
        site.install()?;
        site.expect_nodes("idle", 3).await?;
        Ok(Some(site))
    }

    fn start_node(&mut self, name: &'static str) -> Result<()> {
        let mut node = daemon(&self.sandbox, "slurmd")?;
        node.args(["-D", "-N", name, "-f"]).arg(&self.conf);
        self.nodes.push((name, node.spawn().context("slurmd")?));
        Ok(())
    }

    fn install(&self) -> Result<()> {
        places::install_programs(&self.sandbox.path("bin"))?;
        places::copy_folder(&places::toy_checkpoint(), &self.sandbox.path("home/model"))?;
        places::copy_folder(&places::green_star(), &self.sandbox.path("home/pictures"))?;
        own(&self.sandbox.path("home"))
    }

    /// Something in the home of the user.
    pub(crate) fn home(&self, name: &str) -> PathBuf {
        self.sandbox.path("home").join(name)
    }

    /// A command of that user, at home.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.setpriv);
        let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
        command.args(user).arg(program).args(arguments);
        let path = std::env::var("PATH").unwrap_or_default();
        let home = self.home("");
        command
            .current_dir(&home)
            .env("PATH", format!("{}:{path}", text(&self.sandbox.path("bin"))))
            .env("HOME", &home)
            .env("XDG_STATE_HOME", home.join("state"))
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("SLURM_CONF", &self.conf)
            .env("NO_COLOR", "1")
            .kill_on_drop(true);
        for variable in ["RINGTUNE_COORDINATOR", "TMPDIR"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs `ringtune` as that user.
    pub(crate) async fn ringtune(&self, arguments: &[&str]) -> Result<Finished> {
        finish(&mut self.command("ringtune", arguments)).await
    }

    /// What a command of Slurm says to root.
    pub(crate) async fn slurm(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let done = finish(Command::new(program).args(arguments).env("SLURM_CONF", &self.conf)).await?;
        Ok(done.expect_code(0)?.stdout)
    }

    /// Waits until so many nodes are in that state.
    pub(crate) async fn expect_nodes(&self, state: &str, count: usize) -> Result<()> {
        let look = || async {
            let said =
                finish(Command::new("sinfo").args(["-h", "-N", "-o", "%T"]).env("SLURM_CONF", &self.conf))
                    .await?;
            Ok((said.stdout.lines().filter(|found| *found == state).count() == count).then_some(()))
        };
        until("nodes", SOON, look).await.with_context(|| format!("{count} nodes that are {state}"))
    }

    /// Waits until Slurm has no job.
    pub(crate) async fn expect_no_job(&self) -> Result<()> {
        let look = || async { Ok(self.slurm("squeue", &["-h"]).await?.trim().is_empty().then_some(())) };
        until("no job is left", SOON, look).await
    }

    /// Ends a node as if its power failed: its daemon, and whoever it had started.
    pub(crate) async fn kill_node(&mut self, name: &str) -> Result<()> {
        let at = self.nodes.iter().position(|(node, _)| *node == name).context("a node")?;
        let (_, mut node) = self.nodes.remove(at);
        node.kill().await?;
        let mark = format!("SLURMD_NODENAME={name}");
        let mut killed = 0;
        for entry in fs::read_dir("/proc")?.flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_there = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            let id = entry.file_name().to_str().and_then(|id| id.parse().ok());
            if let Some(id) = id.filter(|_| is_there) {
                // It may have ended just now.
                let _ = ringtune_tests::process::signal_process(id, rustix::process::Signal::KILL);
                killed += 1;
            }
        }
        ensure!(killed > 0, "nothing ran on {name}");
        self.slurm("scontrol", &["update", &format!("nodename={name}"), "state=down", "reason=test"]).await?;
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // What a test that failed has left there.
        let mut end = std::process::Command::new("scancel");
        let _ = end.args(["--full", "--signal=KILL", "--user=nobody"]).env("SLURM_CONF", &self.conf).status();
    }
}

/// A daemon, with a log of its own.
fn daemon(sandbox: &Sandbox, name: &str) -> Result<Command> {
    let log = fs::File::options().create(true).append(true).open(sandbox.path(&format!("log/{name}.out")))?;
    let program = tools::find(name, PACKAGES)?.context("it was there")?;
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    Ok(command)
}

/// Gives a folder and all in it to the user.
fn own(path: &Path) -> Result<()> {
    chown(path, Some(NOBODY), Some(NOBODY))?;
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            own(&entry?.path())?;
        }
    }
    Ok(())
}

/// Writes slurm.conf, with ports that are free.
fn configure(sandbox: &Sandbox) -> Result<PathBuf> {
    for folder in ["state", "log", "run", "spool/n1", "spool/n2", "spool/n3"] {
        fs::create_dir_all(sandbox.path(folder))?;
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = host.split('.').next().unwrap_or_default().to_owned();
    let listeners: Vec<TcpListener> =
        (0..=NODES.len()).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let ports: Vec<u16> =
        listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect::<Result<_>>()?;
    let folder = text(sandbox.folder());
    let mut conf = format!(
        "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
         SlurmctldPort={}\nAuthType=auth/munge\nAuthInfo=socket={folder}/run/munge.sock,cred_expire=5\n\
         CredType=cred/munge\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool/%n\n\
         SlurmctldPidFile={folder}/run/slurmctld.pid\nSlurmdPidFile={folder}/run/%n.pid\n\
         SlurmctldLogFile={folder}/log/slurmctld.log\nSlurmdLogFile={folder}/log/%n.log\n\
         ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
         SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0\n\
         JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
         ReturnToService=2\nKillWait=3\nJobRequeue=1\n",
        ports[0]
    );
    for (name, port) in NODES.iter().zip(&ports[1..]) {
        conf += &format!(
            "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=2000\n"
        );
    }
    conf += "PartitionName=cpu Nodes=n1,n2,n3 Default=YES State=UP\n";
    let path = sandbox.path("slurm.conf");
    fs::write(&path, conf)?;
    let cgroups = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n";
    fs::write(sandbox.path("cgroup.conf"), cgroups)?;
    Ok(path)
}
