//! The two tasks that keep a rank in touch with its neighbours, whatever it is doing itself.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::{Frame, LinkBroken, Place, ReceiveHalf, RingError, SendHalf, Signal};
use crate::checksum::crc32c;

/// How a ring is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Status {
    /// Nothing has gone wrong so far.
    Open,
    /// It is over.
    Failed(RingError),
}

/// Makes a ring fail, unless it has failed before. Both tasks then end and break the connections,
/// so that the neighbours learn of it.
pub(super) fn fail(status: &watch::Sender<Status>, error: RingError) {
    status.send_if_modified(|status| {
        let first = !matches!(status, Status::Failed(_));
        if first {
            *status = Status::Failed(error);
        }
        first
    });
}

/// Waits until a ring fails. Never ends for one that is dropped unfailed.
pub(super) async fn failed(mut status: watch::Receiver<Status>) -> RingError {
    let found =
        status.wait_for(|status| matches!(status, Status::Failed(_))).await.map(|status| status.clone());
    match found {
        Ok(Status::Failed(error)) => error,
        _ => std::future::pending().await,
    }
}

/// Sends what the collectives hand over; between frames, pulses. Ends cleanly once the queue is
/// closed and empty.
///
/// A next rank that is gone is a failure only when there is a frame for it: it may have all it
/// needed and have left while this rank still takes in. If it died instead, the ranks after it
/// notice, and then this one through the ring.
pub(super) async fn send_frames(
    mut half: Box<dyn SendHalf>,
    mut frames: mpsc::Receiver<Frame>,
    place: Place,
    pulse_interval: Duration,
    status: watch::Sender<Status>,
) {
    let work = async {
        loop {
            let next_frame = timeout(pulse_interval, frames.recv()).await;
            let sent = match next_frame {
                Ok(Some(frame)) => half.send(Signal::Frame(frame)).await,
                Ok(None) => {
                    // This rank is done; whether the next one still listens is not its concern.
                    let _ = half.finish().await;
                    return Ok(());
                }
                Err(_) => {
                    let pulse = Signal::Pulse { job: place.job, epoch: place.epoch };
                    match half.send(pulse).await {
                        Err(gone) if frames.recv().await.is_some() => Err(gone),
                        Err(_) => return Ok(()),
                        Ok(()) => Ok(()),
                    }
                }
            };
            sent?;
        }
    };
    tokio::select! {
        biased;
        _ = failed(status.subscribe()) => {}
        sent = work => if let Err(LinkBroken(reason)) = sent {
            fail(&status, RingError::PeerLost { rank: place.next(), reason });
        },
    }
}

/// Takes in what the previous rank sends, listens for its signs of life, and hands frames over to
/// the collectives.
pub(super) async fn receive_frames(
    mut half: Box<dyn ReceiveHalf>,
    frames: mpsc::Sender<Frame>,
    place: Place,
    (peer_timeout, pulse_interval): (Duration, Duration),
    status: watch::Sender<Status>,
) {
    let work = async {
        // Frames that the collectives have no room for yet keep this from listening; they are
        // themselves signs of life, and silence is measured again once there is room.
        while let Some(signal) = hear(&mut *half, place, peer_timeout, pulse_interval).await? {
            check_membership(&signal, place)?;
            check_payload(&signal, place)?;
            if let Signal::Frame(frame) = signal
                && frames.send(frame).await.is_err()
            {
                break;
            }
        }
        Ok(())
    };
    let received = tokio::select! {
        biased;
        _ = failed(status.subscribe()) => return,
        received = work => received,
    };
    // A previous rank that is done ends this task and with it the queue: a failure only for a
    // collective that still waits for frames.
    if let Err(error) = received {
        fail(&status, error);
    }
}

/// The next signal, unless there is none for `peer_timeout` and, after that, another
/// `pulse_interval`: a process that was itself frozen finds the deadline passed when it wakes, and
/// must first look at what has come meanwhile.
async fn hear(
    half: &mut dyn ReceiveHalf,
    place: Place,
    peer_timeout: Duration,
    pulse_interval: Duration,
) -> Result<Option<Signal>, RingError> {
    for patience in [peer_timeout, pulse_interval] {
        if let Ok(heard) = timeout(patience, half.receive()).await {
            return heard
                .map_err(|LinkBroken(reason)| RingError::PeerLost { rank: place.previous(), reason });
        }
    }
    Err(RingError::Stalled { rank: place.previous(), silent: peer_timeout })
}

fn check_membership(signal: &Signal, place: Place) -> Result<(), RingError> {
    let rank = place.previous();
    if signal.job() != place.job {
        let problem = format!("it speaks for job {} in the ring of job {}", signal.job(), place.job);
        return Err(RingError::Protocol { rank, problem });
    }
    let (got, current) = (signal.epoch(), place.epoch);
    if got < current {
        return Err(RingError::StaleEpoch { rank, got, current });
    }
    if got > current {
        let problem = format!("it speaks for epoch {got}, but the ring is at epoch {current}");
        return Err(RingError::Protocol { rank, problem });
    }
    Ok(())
}

/// That a frame came as it was sent.
fn check_payload(signal: &Signal, place: Place) -> Result<(), RingError> {
    let Signal::Frame(Frame { payload, checksum: Some(expected), .. }) = signal else { return Ok(()) };
    let (found, expected) = (crc32c(payload), *expected);
    if found == expected {
        return Ok(());
    }
    Err(RingError::Damaged { rank: place.previous(), expected, found })
}
