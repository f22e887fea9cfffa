//! The daemons of a row, and everything around them that can be made bad.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Rlimit;

use super::{
    build::Build,
    network::Network,
    node::{clock, disk},
    proxy::Proxy,
    random::Random,
    row::{Act, Ground, Row},
    say,
};
use crate::{
    Cluster, Launch, Sandbox,
    daemon::{FAKE_WORKER, WORKER},
    wait::{SOON, until},
};

/// Set: all daemons of all rows speak TLS.
pub const TLS: &str = "RINGTUNE_CHAOS_TLS";

/// Set: ring neighbours of all rows are joined by so many connections through ports.
pub const CONNECTIONS: &str = "RINGTUNE_CHAOS_CONNECTIONS";

/// Clusters of this process so far.
static CLUSTERS: AtomicU32 = AtomicU32::new(0);

/// A free port of an address that no connection of this machine comes from: a coordinator that is away for a while finds
/// its port free again, whoever dials beside it.
fn loopback() -> String {
    let number =
        std::process::id().wrapping_add(CLUSTERS.fetch_add(1, Ordering::Relaxed).wrapping_mul(7_919));
    format!("127.{}.{}.{}:0", 1 + number / 62_500 % 250, 1 + number / 250 % 250, 1 + number % 250)
}

/// Whether all daemons are to speak TLS: the matrix can be played either way.
pub fn tls() -> bool {
    std::env::var_os(TLS).is_some_and(|value| !value.is_empty())
}

/// Number of connections between ring neighbours, if set.
pub fn connections() -> Option<String> {
    std::env::var(CONNECTIONS).ok().filter(|number| !number.is_empty())
}

/// A link that a row broke, as it is mended.
#[derive(Debug)]
pub enum BrokenLink {
    /// All to the worker of this label, on proxies.
    Of(String),
    /// From one node to another, where what is sent is lost.
    Lossy {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// From one node to a port of another, which is refused.
    Refused {
        /// The dialling worker.
        from: usize,
        /// The dialled worker.
        to: usize,
        /// Its port.
        port: u16,
    },
}

/// A cluster on its ground. The fields are dropped in this order: daemons before what they stand on.
#[derive(Debug)]
pub struct Stage<'a> {
    /// The daemons.
    pub cluster: Cluster<'a>,
    /// Sandbox of the daemons.
    pub sandbox: &'a Sandbox,
    /// Source of random times.
    pub random: Random,
    /// Proxies of workers for their neighbours, by label.
    pub ring_links: BTreeMap<String, Proxy>,
    /// Proxies of the coordinator for workers, by label.
    pub coordinator_links: BTreeMap<String, Proxy>,
    /// Original limits of daemons that cannot open files now.
    pub descriptors: BTreeMap<String, Rlimit>,
    /// The link that was broken last, until it is mended.
    pub broken: Option<BrokenLink>,
    /// A moment that does not come within this does not come.
    pub patience: Duration,
    /// The cables.
    pub network: Option<Network>,
    next_words: Vec<(Vec<u8>, Vec<u8>)>,
    ground: Ground,
    tls: bool,
    program: &'static str,
    flags: Vec<String>,
}

impl<'a> Stage<'a> {
    /// Starts the daemons of a row; none, and a loud line, where this machine has no such ground.
    pub async fn set(sandbox: &'a Sandbox, row: &Row, seed: u64) -> Result<Option<Self>> {
        let mut launch = Launch { listen: loopback(), ..Launch::coordinator() };
        let tls = row.tls || tls();
        if tls && row.acts.iter().any(|act| matches!(act, Act::AddBuild(_))) {
            say("SKIPPED over TLS: nobody between a worker and its coordinator can change their words");
            return Ok(None);
        }
        if tls {
            launch = launch.over_tls();
        }
        let mut network = None;
        match row.ground {
            Ground::Loopback | Ground::Proxies => (),
            Ground::Namespaces => {
                // For the workers that join later, too.
                let Some(started) = Network::start(row.workers.len() + 1)? else { return Ok(None) };
                launch.listen = format!("{}:0", started.address(0));
                if !tls {
                    launch = launch.flags(["--insecure"]);
                }
                network = Some(started);
            }
            Ground::SmallDisks(bytes) | Ground::LowDisks(bytes, _) => {
                if !disk::may_mount() {
                    return Ok(None);
                }
                let free = if let Ground::LowDisks(_, free) = row.ground { free } else { 0 };
                launch = launch.variable("RINGTUNE__STORAGE__FREE_BYTES", &free.to_string());
                launch = disk::small(launch, sandbox, bytes);
            }
            Ground::Clocks => {
                let Some(library) = clock::library() else { return Ok(None) };
                launch = clock::movable(launch, sandbox, &library)?;
            }
        }
        let cluster = Cluster::start_coordinator(sandbox, launch).await?;
        let mut stage = Self {
            cluster,
            sandbox,
            random: Random::new(seed),
            ring_links: BTreeMap::new(),
            coordinator_links: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            broken: None,
            patience: Duration::from_secs(row.deadline) * 2 / 3,
            network,
            next_words: Vec::new(),
            ground: row.ground,
            tls,
            program: row.program,
            flags: row.workers.first().cloned().unwrap_or_default(),
        };
        for flags in &row.workers {
            stage.add_worker_of(row.program, flags).await?;
        }
        stage.cluster.wait_for_idle(row.workers.len()).await?;
        Ok(Some(stage))
    }

    /// Starts one more worker like the first one, with more flags.
    pub async fn add_worker(&mut self, more: &[&str]) -> Result<()> {
        let mut flags = self.flags.clone();
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        self.add_worker_of(self.program, &flags).await
    }

    /// Starts one more worker, which says that it is of another build, and waits until the coordinator believes it.
    pub async fn add_build(&mut self, build: Build) -> Result<()> {
        ensure!(self.ground == Ground::Proxies, "another build needs proxies");
        self.next_words = build.words();
        self.add_worker(&[]).await?;
        let id = self.cluster.workers.last().context("the worker")?.id.clone();
        let listed = || async {
            let workers = self.cluster.list_workers().await?;
            let worker = workers.into_iter().find(|worker| worker.worker_id == id);
            Ok(worker.and_then(|worker| worker.capabilities).map(|capabilities| capabilities.version))
        };
        let version = until("the worker is listed", SOON, listed).await?;
        ensure!(version == build.version(), "it says that it is of version {version}");
        Ok(())
    }

    /// Starts one more worker of this program, with these flags.
    pub async fn add_worker_of(&mut self, program: &str, flags: &[String]) -> Result<()> {
        let number = self.cluster.workers.len() + 1;
        let label = format!("worker-{number}");
        let coordinator = self.cluster.coordinator.grpc.clone();
        let mut launch = Launch::worker(&label, program, &coordinator);
        match self.ground {
            Ground::Loopback => (),
            Ground::Proxies => {
                let (ring, up) = (self.proxy().await?, self.proxy().await?);
                up.forward_to(&coordinator)?;
                up.reword(std::mem::take(&mut self.next_words));
                launch = Launch::worker(&label, program, &up.address());
                launch = launch.flags(["--advertise-address", &ring.address()]);
                // Workers of one machine would go around the proxy.
                launch = launch.variable("RINGTUNE__RING__LOCAL_SOCKETS", "false");
                self.ring_links.insert(label.clone(), ring);
                self.coordinator_links.insert(label.clone(), up);
            }
            Ground::Namespaces => {
                let network = self.network.as_ref().context("a network")?;
                launch.listen = format!("{}:0", network.address(number));
                launch = Launch { wrapper: network.wrapper(number), ..launch };
                if !self.tls {
                    launch = launch.flags(["--insecure"]);
                }
                // The jobs' models are where the tests are.
                launch = launch.variable("RINGTUNE__ACCESS__MODEL_ROOTS", "/");
            }
            Ground::SmallDisks(bytes) | Ground::LowDisks(bytes, _) => {
                launch = disk::small(launch, self.sandbox, bytes)
            }
            Ground::Clocks => {
                let library = clock::library().context("libfaketime")?;
                launch = clock::movable(launch, self.sandbox, &library)?;
                // Workers of one machine would show each other no certificates.
                launch = launch.variable("RINGTUNE__RING__LOCAL_SOCKETS", "false");
            }
        }
        // Older builds do not know the setting.
        if let Some(connections) = connections().filter(|_| [WORKER, FAKE_WORKER].contains(&program)) {
            launch = launch.variable("RINGTUNE__RING__LOCAL_SOCKETS", "false");
            launch = launch.variable("RINGTUNE__RING__CONNECTIONS", &connections);
        }
        self.cluster.add_worker(launch.flags(flags.iter().map(String::as_str))).await?;
        self.connect_proxy(&label)
    }

    /// Starts a daemon that ended again.
    pub async fn start_again(&mut self, label: &str) -> Result<()> {
        self.cluster.start_again(label).await?;
        self.connect_proxy(label)
    }

    /// A worker listens on another port each time.
    fn connect_proxy(&mut self, label: &str) -> Result<()> {
        let address = self.cluster.daemon(label)?.grpc.clone();
        self.ring_links.get(label).map_or(Ok(()), |proxy| proxy.forward_to(&address))
    }

    async fn proxy(&mut self) -> Result<Proxy> {
        Proxy::start(self.random.bits()).await
    }
}
