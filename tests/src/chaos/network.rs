//! Nodes of their own on one machine: network namespaces on a bridge, whose cables can be cut. Needs root and `ip`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, id},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, ensure};

use super::say;
use crate::Launch;

/// Behind no interface: what is sent there is lost without a word.
const NOBODY: &str = "02:00:00:00:00:01";

/// Networks of this process so far: what is left of one is not to be met by the next.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// A bridge and the namespaces on it; gone when dropped.
#[derive(Debug)]
pub struct Network {
    number: u32,
    bridge: String,
    nodes: usize,
}

fn ip(arguments: &[&str]) -> Result<()> {
    let done = Command::new("ip").args(arguments).output().context("run ip")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "ip {}: {said}", arguments.join(" "));
    Ok(())
}

impl Network {
    /// A network of nodes 1 to `nodes`; None, with a loud line, if this machine does not permit it.
    pub fn start(nodes: usize) -> Result<Option<Self>> {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed) % 100;
        let bridge = format!("rtb{}-{number}", id());
        if let Err(error) = ip(&["link", "add", &bridge, "type", "bridge"]) {
            say(&format!("SKIPPED: a network of its own needs root and iproute2: {error:#}"));
            return Ok(None);
        }
        let network = Self { number, bridge, nodes };
        ip(&["addr", "add", &format!("{}/24", network.address(0)), "dev", &network.bridge])?;
        ip(&["link", "set", &network.bridge, "up"])?;
        for node in 1..=nodes {
            network.add(node)?;
        }
        Ok(Some(network))
    }

    fn add(&self, node: usize) -> Result<()> {
        let (space, cable) = (self.namespace(node), self.cable(node));
        ip(&["netns", "add", &space])?;
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
        ip(&["link", "set", &cable, "master", &self.bridge, "up"])?;
        let inside = |arguments: &[&str]| ip(&[&["-n", &space], arguments].concat());
        inside(&["addr", "add", &format!("{}/24", self.address(node)), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])?;
        inside(&["link", "set", "lo", "up"])
    }

    /// A node's address; node 0 is the machine itself.
    pub fn address(&self, node: usize) -> String {
        format!("10.{}.{}.{}", 64 + id() % 64, (id() / 64 + self.number) % 256, node + 1)
    }

    /// Command that runs a program on a node; it keeps its process id.
    pub fn wrapper(&self, node: usize) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace(node)].map(str::to_owned).to_vec()
    }

    /// A daemon on a node, where it speaks TLS by itself, as on any network.
    pub fn host(&self, node: usize, launch: Launch) -> Launch {
        let listen = format!("{}:0", self.address(node));
        Launch { listen, wrapper: self.wrapper(node), tls: true, ..launch }
    }

    /// Gives a node its own /etc/hosts, which may be written while its programs run. Call it before they start.
    pub fn hosts(&self, node: usize) -> Result<PathBuf> {
        fs::create_dir_all(self.files(node))?;
        let hosts = self.files(node).join("hosts");
        fs::write(&hosts, "127.0.0.1 localhost\n")?;
        Ok(hosts)
    }

    /// What `ip netns exec` puts over /etc. Source: ip-netns(8).
    fn files(&self, node: usize) -> PathBuf {
        Path::new("/etc/netns").join(self.namespace(node))
    }

    /// Nothing gets to the node or from it.
    pub fn cut(&self, node: usize) -> Result<()> {
        ip(&["link", "set", &self.cable(node), "down"])
    }

    /// The cable is whole again.
    pub fn mend(&self, node: usize) -> Result<()> {
        ip(&["link", "set", &self.cable(node), "up"])
    }

    /// Drops packets of `from` to `to`; the other direction stays.
    pub fn lose(&self, from: usize, to: usize) -> Result<()> {
        let space = self.namespace(from);
        let entry = ["neigh", "replace", &self.address(to), "lladdr", NOBODY, "dev", "eth0"];
        ip(&[&["-n", &space], &entry[..], &["nud", "permanent"]].concat())
    }

    /// Delivers packets of `from` to `to` again.
    pub fn find(&self, from: usize, to: usize) -> Result<()> {
        ip(&["-n", &self.namespace(from), "neigh", "del", &self.address(to), "dev", "eth0"])
    }

    /// `from` reaches no more than other ports of `to`, as with a firewall that says so.
    pub fn refuse(&self, from: usize, to: usize, port: u16) -> Result<()> {
        self.rule("add", from, to, port)
    }

    /// The firewall lets `from` through again.
    pub fn allow(&self, from: usize, to: usize, port: u16) -> Result<()> {
        self.rule("del", from, to, port)
    }

    fn rule(&self, change: &str, from: usize, to: usize, port: u16) -> Result<()> {
        let (space, to, port) = (self.namespace(from), self.address(to), port.to_string());
        ip(&["-n", &space, "rule", change, "to", &to, "ipproto", "tcp", "dport", &port, "unreachable"])
    }

    /// Packets of the node's interface have this size at most.
    pub fn set_mtu(&self, node: usize, bytes: u32) -> Result<()> {
        ip(&["-n", &self.namespace(node), "link", "set", "eth0", "mtu", &bytes.to_string()])
    }

    fn namespace(&self, node: usize) -> String {
        format!("ringtune-test-{}-{}-{node}", id(), self.number)
    }

    fn cable(&self, node: usize) -> String {
        // Of 15 letters at most.
        format!("rtv{}-{}-{node}", id(), self.number)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in 1..=self.nodes {
            let _ = ip(&["link", "del", &self.cable(node)]);
            let _ = ip(&["netns", "del", &self.namespace(node)]);
            let _ = fs::remove_dir_all(self.files(node));
        }
        let _ = ip(&["link", "del", &self.bridge]);
    }
}
