//! The local door of a port: a Unix socket for processes of this machine, which costs less than TCP and needs no TLS.
//!
//! Nobody says through the socket who it is. Whoever wants in asks on the port itself, where that was shown, and gets an
//! [`Invitation`] with a secret that is good once and for seconds. A connection begins with the secret, and is from then on
//! what another one of the same caller would be: counted, closed at its certificate's end, and at once when that is revoked.
//! The kernel says whose process is on the other side; it has to be this process's user, who could read its keys anyhow.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, Stream, Transport};
use super::opening::Opener;
use super::places::{Connections, Place};
use super::refusals::Refusal;
use crate::certificate::Validity;
use crate::handed::{self, Handed};
use crate::peer::{Activity, Caller, Peer, Refused};
use crate::plaintext::Spoken;
use crate::random;

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;
/// What this side says to a secret that is good.
pub(crate) const WELCOME: u8 = 1;
/// An invitation is good for so long: it is used at once.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// Invitations that are not used yet. A ring takes one of each member.
const MOST_INVITED: usize = 64;
/// After accepting failed.
const PAUSE: Duration = Duration::from_millis(100);

/// What lets its holder in, once.
#[derive(Clone)]
pub struct Invitation {
    /// The socket.
    pub path: PathBuf,
    /// What a connection begins with.
    pub secret: [u8; SECRET_BYTES],
}

impl std::fmt::Debug for Invitation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Invitation").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why nobody is let in.
#[derive(Debug, thiserror::Error)]
pub enum NotInvited {
    /// Too many are invited already.
    #[error("as many are invited to the local socket as may be; try again later")]
    Full,
    /// There is no secret.
    #[error(transparent)]
    Unpredictable(#[from] random::Unpredictable),
}

/// A door that is open. Once it is dropped, nobody comes in any more; connections that are open stay.
#[derive(Debug)]
pub struct LocalDoor {
    path: PathBuf,
    invited: Arc<Invited>,
    _accepting: AbortOnDropHandle<()>,
}

/// Those who may come.
#[derive(Debug, Default)]
struct Invited(Mutex<HashMap<[u8; SECRET_BYTES], Guest>>);

/// Who was invited, as the port saw it.
#[derive(Debug)]
struct Guest {
    address: SocketAddr,
    caller: Caller,
    valid: Option<Validity>,
    until: Instant,
}

impl Invited {
    /// Held for a few instructions, never over an await.
    fn guests(&self) -> MutexGuard<'_, HashMap<[u8; SECRET_BYTES], Guest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, secret: &[u8; SECRET_BYTES]) -> Option<Guest> {
        self.guests().remove(secret).filter(|guest| Instant::now() < guest.until)
    }
}

impl LocalDoor {
    /// Opens a door at `path`, replacing the socket of a process that died.
    pub(super) fn open(path: &Path, opener: Arc<Opener>, connections: Connections) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        let invited = Arc::new(Invited::default());
        let accepting = tokio::spawn(accept_all(socket, invited.clone(), opener, connections));
        let accepting = AbortOnDropHandle::new(accepting);
        Ok(Self { path: path.to_owned(), invited, _accepting: accepting })
    }

    /// Lets a caller in, who asked on the port.
    ///
    /// # Errors
    /// Too many are invited, or there is no secret.
    pub fn invite(&self, peer: &Peer) -> Result<Invitation, NotInvited> {
        let secret = random::bytes()?;
        let Peer { address, caller, valid, .. } = peer.clone();
        let (now, mut guests) = (Instant::now(), self.invited.guests());
        guests.retain(|_, guest| now < guest.until);
        if guests.len() >= MOST_INVITED {
            return Err(NotInvited::Full);
        }
        guests.insert(secret, Guest { address, caller, valid, until: now + GOOD_FOR });
        drop(guests);
        Ok(Invitation { path: self.path.clone(), secret })
    }
}

impl Drop for LocalDoor {
    fn drop(&mut self) {
        // Whoever comes later finds nobody, with the file or without it.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept_all(
    socket: UnixListener,
    invited: Arc<Invited>,
    opener: Arc<Opener>,
    connections: Connections,
) {
    // Dropped with this task, and then all that are opening end too.
    let mut openings = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, _)) => match connections.admit(SocketAddr::from(([127, 0, 0, 1], 0)).ip()) {
                    Ok(place) => {
                        openings.spawn(open(invited.clone(), opener.clone(), stream, place));
                    }
                    Err(refusal) => opener.refusals.note(refusal, None, &refusal.text()),
                },
                Err(error) => {
                    opener.refusals.note(Refusal::Accept, None, &error);
                    sleep(PAUSE).await;
                }
            },
            Some(_) = openings.join_next(), if !openings.is_empty() => {}
        }
    }
}

/// Opens one connection, and hands it on.
async fn open(invited: Arc<Invited>, opener: Arc<Opener>, mut stream: UnixStream, mut place: Place) {
    let (guest, handed) = match timeout(opener.limits.opening, welcome(&invited, &mut stream)).await {
        Ok(Some(welcome)) => welcome,
        Ok(None) => return opener.refusals.note(Refusal::Uninvited, None, &Refusal::Uninvited.text()),
        Err(_) => return opener.refusals.note(Refusal::Slow, None, &Refusal::Slow.text()),
    };
    let Guest { address, caller, valid, .. } = guest;
    // It is in the list first: a revocation from now on finds it there, and one before is seen below.
    let close = place.opened(caller.identity().cloned());
    let caller = match (caller, &opener.secure) {
        (Caller::Known(identity), Some(secure)) if secure.trust.revoked().has(&identity) => {
            Caller::Refused(Refused::Revoked(identity))
        }
        (caller, _) => caller,
    };
    let peer = Peer { address, caller, valid, activity: Activity::new(), handed };
    let transport = Transport { stream: Stream::Local(stream), spoken: Spoken::Http2 };
    let connection = Connection::new(transport, peer, place, close, opener.limits, opener.refusals.clone());
    // Only fails where the listener was dropped: then nobody wants it.
    let _ = opener.ready.send(connection).await;
}

/// The guest and the files that it hands over. None: it was not invited, or is another user's process.
async fn welcome(invited: &Invited, stream: &mut UnixStream) -> Option<(Guest, Handed)> {
    if !is_of(stream, own_user()) {
        return None;
    }
    let mut secret = [0; SECRET_BYTES];
    let handed = handed::receive(stream, &mut secret).await.ok()?;
    let guest = invited.take(&secret)?;
    stream.write_all(&[WELCOME]).await.ok()?;
    Some((guest, handed))
}

/// Whether the process on the other side is this user's.
pub(crate) fn is_of(stream: &UnixStream, user: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == user)
}

/// Whose this process is.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_says_whose_process_is_there() {
        let (one, _two) = UnixStream::pair().unwrap();
        assert!(is_of(&one, own_user()));
        assert!(!is_of(&one, own_user() + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_invitation_is_good_once_and_for_seconds() {
        let invited = Invited::default();
        let guest = || Guest {
            address: ([127, 0, 0, 1], 7).into(),
            caller: Caller::Open,
            valid: None,
            until: Instant::now() + GOOD_FOR,
        };
        invited.guests().extend([([1; SECRET_BYTES], guest()), ([2; SECRET_BYTES], guest())]);
        assert!(invited.take(&[3; SECRET_BYTES]).is_none());
        assert!(invited.take(&[1; SECRET_BYTES]).is_some());
        assert!(invited.take(&[1; SECRET_BYTES]).is_none());
        tokio::time::advance(GOOD_FOR).await;
        assert!(invited.take(&[2; SECRET_BYTES]).is_none());
    }
}
