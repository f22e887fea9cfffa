//! The checks of this node's own addresses: the interface behind the advertised one, names, and the worker's ports.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _},
    path::Path,
    time::Duration,
};

use tokio::{process::Command, task::spawn_blocking, time::timeout};

use super::checks::{Check, Verdict};
use crate::{
    advertise::advertised_address,
    node::{Interface, Node},
    settings::Settings,
};

/// For a name server.
const LIMIT: Duration = Duration::from_secs(5);
/// Tunnels have less than Ethernet's 1500 bytes; below that IPv6 does not work at all.
const LEAST_MTU: u32 = 1280;

/// All of them. `root` is where /proc and /sys are.
pub(super) async fn of_addresses(root: &Path, settings: &Settings, has_coordinator: bool) -> Vec<Check> {
    let mut checks = vec![of_interface(root, settings).await];
    let host = Node::read(root).host_name;
    checks.push(name("own name", &host, resolve(&host).await, settings));
    if has_coordinator && let Ok(address) = settings.coordinator_address() {
        let host = address.host.trim_matches(['[', ']']);
        // An address needs no name.
        if host.parse::<IpAddr>().is_err() {
            checks.push(name("coordinator's name", host, resolve(host).await, settings));
        }
    }
    for (name, setting, address) in [
        ("gRPC port", "grpc.listen (--listen)", settings.grpc.listen),
        ("HTTP port", "http.listen (--http-listen)", settings.http.listen),
    ] {
        checks.push(of_port(root, name, setting, address));
    }
    checks
}

async fn of_interface(root: &Path, settings: &Settings) -> Check {
    const NAME: &str = "interface";
    let asked = settings.clone();
    let advertised = spawn_blocking(move || {
        let advertised = advertised_address(&asked, asked.grpc.listen).map_err(|error| error.to_string())?;
        let found = advertised.to_socket_addrs().ok().and_then(|mut all| all.next());
        Ok::<_, String>((advertised, found.map(|address| address.ip())))
    });
    match timeout(LIMIT, advertised).await {
        Ok(Ok(Ok((advertised, Some(ip))))) => {
            let found = Interface::with(root, ip);
            interface(&advertised, ip, found, settings.is_exposed())
        }
        Ok(Ok(Ok((advertised, None)))) => Check::new(NAME, format!("{advertised} has no address")).unless(
            false,
            Verdict::Bad,
            "ring neighbours cannot dial it: set ring.advertise_address to an address, or add the name to DNS or /etc/hosts",
        ),
        Ok(Ok(Err(reason))) => {
            Check::new(NAME, reason).unless(false, Verdict::Bad, "a worker with these settings does not start")
        }
        Ok(Err(_)) | Err(_) => Check::new(NAME, "no answer from the name server").unless(
            false,
            Verdict::Warn,
            "set ring.advertise_address to an address",
        ),
    }
}

fn interface(advertised: &str, ip: IpAddr, found: Option<Interface>, exposed: bool) -> Check {
    const NAME: &str = "interface";
    let Some(Interface { name, mtu, speed }) = found else {
        return Check::new(NAME, format!("{advertised} is on no interface of this machine")).unless(
            false,
            Verdict::Warn,
            "right only where something forwards that address here: otherwise set ring.interface or ring.advertise_address",
        );
    };
    let mtu_text = mtu.map_or("MTU not known".to_owned(), |mtu| format!("MTU {mtu}"));
    let speed_text = speed.map_or(String::new(), |speed| format!(", {speed} Mbit/s"));
    let check = Check::new(NAME, format!("{advertised} on {name}, {mtu_text}{speed_text}"));
    if ip.is_loopback() {
        return check.unless(
            !exposed,
            Verdict::Bad,
            "neighbours on other machines cannot dial loopback: set ring.interface or ring.advertise_address",
        );
    }
    if mtu.is_some_and(|mtu| mtu < LEAST_MTU) {
        return check.unless(
            false,
            Verdict::Warn,
            "large messages are cut up: raise the interface's MTU to 1500",
        );
    }
    check.unless(
        speed.is_none_or(|speed| speed >= 1000),
        Verdict::Warn,
        "the link runs below a gigabit: look at the cable and the switch's port (`ethtool INTERFACE`)",
    )
}

/// A name's addresses, or why there are none; and the name of the first of them, as the system's files and servers have it.
#[derive(Debug)]
struct Resolved {
    addresses: Result<BTreeSet<IpAddr>, String>,
    back: Option<String>,
}

async fn resolve(host: &str) -> Resolved {
    let found = match timeout(LIMIT, tokio::net::lookup_host((host, 0))).await {
        Ok(Ok(found)) => Ok(found.map(|address| address.ip()).collect::<BTreeSet<_>>()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    };
    let first = found.as_ref().ok().and_then(|addresses| addresses.first().copied());
    let back = match first {
        Some(address) => back(address).await,
        None => None,
    };
    Resolved { addresses: found, back }
}

/// The standard library does not look backwards: `getent` does, by the same files and servers.
async fn back(address: IpAddr) -> Option<String> {
    let asked = Command::new("getent").arg("hosts").arg(address.to_string()).kill_on_drop(true).output();
    let answer = timeout(LIMIT, asked).await.ok()?.ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    text.split_whitespace().nth(1).map(str::to_owned)
}

fn name(check: &'static str, host: &str, resolved: Resolved, settings: &Settings) -> Check {
    let is_advertised = settings.ring.advertise_address.split(':').next() == Some(host);
    let needed = check != "own name" || is_advertised;
    match resolved.addresses {
        Err(reason) => Check::new(check, format!("{host}: {reason}")).unless(
            false,
            if needed { Verdict::Bad } else { Verdict::Warn },
            "add it to DNS, or to /etc/hosts of every machine",
        ),
        Ok(addresses) => {
            let list = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let back = match &resolved.back {
                Some(name) if name == host => String::new(),
                Some(name) => format!(", which is {name}"),
                None => ", which has no name".to_owned(),
            };
            let here_only = !addresses.is_empty() && addresses.iter().all(IpAddr::is_loopback);
            Check::new(check, format!("{host} is {list}{back}")).unless(
                !(here_only && is_advertised),
                Verdict::Bad,
                "neighbours that get this answer dial themselves: take the name off the line of 127.0.1.1 in /etc/hosts, or \
                 set ring.advertise_address to an address",
            )
        }
    }
}

fn of_port(root: &Path, name: &'static str, setting: &str, address: SocketAddr) -> Check {
    let holder = match TcpListener::bind(address) {
        Ok(_) => return Check::new(name, format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => holder(root, address.port()),
        Err(error) => {
            let found = format!("{address}: {error}");
            let advice =
                format!("{setting} must be an address of this machine and a port that its user may open");
            return Check::new(name, found).unless(false, Verdict::Bad, &advice);
        }
    };
    taken(name, setting, address, holder)
}

fn taken(name: &'static str, setting: &str, address: SocketAddr, holder: Option<(u32, String)>) -> Check {
    match holder {
        // The kernel cuts names off at 15 letters.
        Some((process, program)) if "ringtune-worker".starts_with(&program) => {
            Check::new(name, format!("{address} is served by a worker that runs (process {process})"))
        }
        Some((process, program)) => Check::new(
            name,
            format!("{address} is taken by {program} (process {process})"),
        )
        .unless(false, Verdict::Bad, &format!("end that program, or choose another port: {setting}")),
        None => Check::new(name, format!("{address} is taken by a program of another user")).unless(
            false,
            Verdict::Warn,
            &format!("`ss -ltnp` as root shows which; if it is no worker, choose another port: {setting}"),
        ),
    }
}

/// The process that listens on a port, and its name, if this user may see it.
fn holder(root: &Path, port: u16) -> Option<(u32, String)> {
    let sockets: BTreeSet<String> = ["proc/net/tcp", "proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(root.join(path)).ok())
        .flat_map(|text| text.lines().filter_map(|line| listening(line, port)).collect::<Vec<_>>())
        .collect();
    let processes = fs::read_dir(root.join("proc")).ok()?.flatten();
    for process in processes {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let ours = files.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|target| sockets.contains(&*target.to_string_lossy()))
        });
        if ours {
            let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((id, program.trim().to_owned()));
        }
    }
    None
}

/// The socket of a line of /proc/net/tcp, if it listens on this port, as links of /proc/PID/fd name it.
fn listening(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, local) = fields.get(1)?.rsplit_once(':')?;
    let listens = fields.get(3) == Some(&"0A") && u16::from_str_radix(local, 16) == Ok(port);
    listens.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_neighbours_dial_is_on_an_interface_of_some_speed() {
        let of = |mtu, speed| {
            let found = Interface { name: "eth0".to_owned(), mtu: Some(mtu), speed };
            interface("10.0.0.1:7080", [10, 0, 0, 1].into(), Some(found), true)
        };
        assert_eq!(of(9000, Some(10_000)).found, "10.0.0.1:7080 on eth0, MTU 9000, 10000 Mbit/s");
        let verdicts = [of(1500, None), of(1500, Some(100)), of(576, None)].map(|check| check.verdict);
        assert_eq!(verdicts, [Verdict::Good, Verdict::Warn, Verdict::Warn]);
        let elsewhere = interface("10.0.0.1:7080", [10, 0, 0, 1].into(), None, true);
        assert_eq!(elsewhere.verdict, Verdict::Warn);
        let lo = || Some(Interface { name: "lo".to_owned(), mtu: Some(65_536), speed: None });
        let of = |exposed| interface("127.0.0.1:7080", [127, 0, 0, 1].into(), lo(), exposed).verdict;
        assert_eq!((of(false), of(true)), (Verdict::Good, Verdict::Bad));
    }

    #[test]
    fn a_name_that_others_dial_must_lead_here() {
        let mut settings = Settings::default();
        let of = |settings: &Settings, ip: Option<[u8; 4]>| {
            let addresses = ip.map(|ip| BTreeSet::from([ip.into()])).ok_or_else(|| "unknown".to_owned());
            name("own name", "node-a", Resolved { addresses, back: Some("node-a".to_owned()) }, settings)
                .verdict
        };
        let (loopback, lan) = (Some([127, 0, 1, 1]), Some([10, 0, 0, 1]));
        assert_eq!((of(&settings, loopback), of(&settings, None)), (Verdict::Good, Verdict::Warn));
        settings.ring.advertise_address = "node-a:7080".to_owned();
        let verdicts = [of(&settings, loopback), of(&settings, lan), of(&settings, None)];
        assert_eq!(verdicts, [Verdict::Bad, Verdict::Good, Verdict::Bad]);
    }

    #[tokio::test]
    async fn names_are_looked_up_both_ways() {
        let here = resolve("localhost").await;
        assert!(here.addresses.unwrap().iter().all(IpAddr::is_loopback));
        assert!(resolve("no-such-name.invalid").await.addresses.is_err());
    }

    #[test]
    fn a_port_that_is_taken_says_by_whom() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let check = of_port(Path::new("/"), "gRPC port", "grpc.listen (--listen)", address);
        assert_eq!(check.verdict, Verdict::Bad);
        assert!(check.found.contains(&format!("(process {})", std::process::id())), "{check:?}");
        assert!(check.advice.contains("--listen"), "{check:?}");
        drop(taken);
        let far = of_port(Path::new("/"), "gRPC port", "grpc.listen", "192.0.2.1:7080".parse().unwrap());
        assert_eq!(far.verdict, Verdict::Bad);
        let worker = super::taken("gRPC port", "", address, Some((7, "ringtune-worker".to_owned())));
        assert_eq!(worker.verdict, Verdict::Good);
        assert_eq!(super::taken("gRPC port", "", address, None).verdict, Verdict::Warn);
    }
}
