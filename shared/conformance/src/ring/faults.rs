//! Transports that fail on purpose.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringtune_shared::ids::Epoch;
use ringtune_shared::ring::{Frame, LinkBroken, ReceiveHalf, SendHalf, Signal, Transport};
use tokio::sync::watch;
use tokio::time::sleep;

use super::any::{AnyReceiveHalf, AnySendHalf, AnyTransport};

/// What a rank does wrong, counted in the frames that it has sent.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Both connections break after so many frames.
    Die {
        /// Frames sent before.
        after: usize,
    },
    /// After so many frames nothing moves any more, in either direction, and no connection breaks:
    /// a frozen process, a cut cable.
    Freeze {
        /// Frames sent before.
        after: usize,
    },
    /// It sends so long at each frame, and does nothing wrong.
    Slow {
        /// What a frame takes.
        pause: Duration,
    },
    /// Everything it sends is of this epoch.
    SpeakFor(Epoch),
    /// After so many frames nothing comes through to the next rank any more, and neither of the two is told: a link that
    /// swallows everything. The one from the previous rank is as it was.
    Swallow {
        /// Frames sent before.
        after: usize,
    },
    /// A bit of one frame is not on its arrival what it was.
    Damage {
        /// Which one.
        frame: usize,
    },
    /// One frame is sent with something wrong in it.
    Change {
        /// Which one.
        frame: usize,
        /// How.
        how: fn(&mut Frame),
    },
}

/// A transport with a fault.
pub struct Faulty {
    inner: AnyTransport,
    fault: Fault,
    graveyard: Graveyard,
}

/// Keeps the connections of frozen ranks open until the case is over.
#[derive(Clone, Default)]
pub struct Graveyard {
    halves: Arc<Mutex<Vec<Half>>>,
}

#[expect(dead_code, reason = "held only so that it is not dropped")]
enum Half {
    Send(AnySendHalf),
    Receive(AnyReceiveHalf),
}

impl Graveyard {
    fn bury(&self, half: Half) {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner).push(half);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    Dead,
    Frozen,
}

/// Its half that leads to the next rank.
pub struct FaultySendHalf {
    /// None once dead.
    inner: Option<AnySendHalf>,
    fault: Fault,
    frames: usize,
    health: watch::Sender<Health>,
    graveyard: Graveyard,
}

/// Its half that comes from the previous rank.
pub struct FaultyReceiveHalf {
    inner: Option<AnyReceiveHalf>,
    health: watch::Receiver<Health>,
    graveyard: Graveyard,
}

impl Faulty {
    /// Gives a transport a fault.
    pub fn any(inner: AnyTransport, fault: Fault, graveyard: &Graveyard) -> AnyTransport {
        AnyTransport::new(Self { inner, fault, graveyard: graveyard.clone() })
    }
}

impl Transport for Faulty {
    type Send = FaultySendHalf;
    type Receive = FaultyReceiveHalf;

    fn split(self) -> (FaultySendHalf, FaultyReceiveHalf) {
        let (send, receive) = self.inner.split();
        let (health, health_seen) = watch::channel(Health::Well);
        let graveyard = self.graveyard;
        let mut send = FaultySendHalf {
            inner: Some(send),
            fault: self.fault,
            frames: 0,
            health,
            graveyard: graveyard.clone(),
        };
        send.break_if_due();
        (send, FaultyReceiveHalf { inner: Some(receive), health: health_seen, graveyard })
    }
}

impl FaultySendHalf {
    fn break_if_due(&mut self) {
        match self.fault {
            Fault::Die { after } if self.frames >= after => {
                self.inner = None;
                self.health.send_replace(Health::Dead);
            }
            Fault::Freeze { after } if self.frames >= after => {
                self.health.send_replace(Health::Frozen);
            }
            _ => {}
        }
    }

    /// Nothing that is sent arrives, and nobody learns of it.
    fn is_silent(&self) -> bool {
        let swallowed = matches!(self.fault, Fault::Swallow { after } if self.frames >= after);
        swallowed || *self.health.borrow() == Health::Frozen
    }

    fn changed(&self, mut signal: Signal) -> Signal {
        match (self.fault, &mut signal) {
            (Fault::SpeakFor(other), Signal::Frame(Frame { epoch, .. }) | Signal::Pulse { epoch, .. }) => {
                *epoch = other
            }
            (Fault::Change { frame: due, how }, Signal::Frame(frame)) if due == self.frames => {
                how(frame);
                *frame = frame.clone().sealed();
            }
            (Fault::Damage { frame: due }, Signal::Frame(frame)) if due == self.frames => {
                let mut payload = frame.payload.to_vec();
                if let Some(byte) = payload.last_mut() {
                    *byte ^= 1;
                }
                frame.payload = payload.into();
            }
            _ => {}
        }
        signal
    }
}

impl SendHalf for FaultySendHalf {
    async fn send(&mut self, signal: Signal) -> Result<(), LinkBroken> {
        if self.is_silent() {
            return std::future::pending().await;
        }
        let is_frame = matches!(signal, Signal::Frame(_));
        if let Fault::Slow { pause } = self.fault
            && is_frame
        {
            sleep(pause).await;
        }
        let signal = self.changed(signal);
        let Some(inner) = &mut self.inner else { return Err(LinkBroken("it died as it was told".into())) };
        inner.send(signal).await?;
        self.frames += usize::from(is_frame);
        self.break_if_due();
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), LinkBroken> {
        if self.is_silent() {
            return std::future::pending().await;
        }
        match &mut self.inner {
            Some(inner) => inner.finish().await,
            None => Err(LinkBroken("it died as it was told".into())),
        }
    }
}

impl ReceiveHalf for FaultyReceiveHalf {
    async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
        let mut health = self.health.clone();
        // Asked of the state and not of its changes: this future may be dropped and made anew.
        let broken = async {
            let found = health.wait_for(|health| *health != Health::Well).await.map(|health| *health);
            match found {
                Ok(health) => health,
                // The sending half is gone, and with it this rank's ring.
                Err(_) => std::future::pending().await,
            }
        };
        let Some(inner) = &mut self.inner else { return Err(LinkBroken("it died as it was told".into())) };
        tokio::select! {
            biased;
            health = broken => match health {
                Health::Dead => {
                    self.inner = None;
                    Err(LinkBroken("it died as it was told".into()))
                }
                Health::Frozen | Health::Well => std::future::pending().await,
            },
            received = inner.receive() => received,
        }
    }
}

impl Drop for FaultySendHalf {
    fn drop(&mut self) {
        if self.is_silent()
            && let Some(inner) = self.inner.take()
        {
            self.graveyard.bury(Half::Send(inner));
        }
    }
}

impl Drop for FaultyReceiveHalf {
    fn drop(&mut self) {
        if *self.health.borrow() == Health::Frozen
            && let Some(inner) = self.inner.take()
        {
            self.graveyard.bury(Half::Receive(inner));
        }
    }
}
