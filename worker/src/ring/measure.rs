//! Measures how much one connection to the next rank carries, and several.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Uri;
use ringtune_proto::v1::MeasureRequest;
use ringtune_security::{Connector, Outgoing as Connected};
use ringtune_shared::tasks;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tracing::debug;

use super::{
    call::{Http2, Unconnected},
    stripes::{Carried, MOST_STRIPES, StreamCount, Trial},
    wire,
};

/// Bytes sent at a time: as in a segment of gradients.
const FILLER_BYTES: usize = 512 << 10;
/// Duration of a measurement's sending. Bytes in flight then have to arrive.
const SENDING: Duration = Duration::from_millis(40);
/// A link on which that takes so long is too slow for this to matter.
const ARRIVING: Duration = Duration::from_secs(2);
/// Nothing is measured any more after this.
const IN_ALL: Duration = Duration::from_secs(3);

/// Connections of HTTP/2 to one worker.
pub(super) struct Way<'a> {
    pub(super) connector: &'a Connector,
    /// Of the worker, for `Measure`.
    pub(super) url: Uri,
}

/// Connections to the next rank, and what was measured to know how many.
pub(super) struct Connections {
    pub(super) open: Vec<Http2<Connected>>,
    pub(super) trial: Trial,
}

impl Way<'_> {
    /// As many connections as are wanted, beside the one that there is; fewer, where no more can be had.
    ///
    /// # Errors
    /// There is none at all.
    pub(super) async fn connections(
        &self,
        first: Http2<Connected>,
        wanted: StreamCount,
    ) -> Result<Connections, Unconnected> {
        let mut connections = Connections { open: vec![first], trial: Trial::default() };
        let number = match wanted {
            StreamCount::Exactly(1) => 1,
            StreamCount::Exactly(number) => {
                let number = number.min(self.most(&mut connections).await);
                self.grow(&mut connections.open, number).await;
                number
            }
            StreamCount::Measured => {
                let most = self.most(&mut connections).await;
                self.measure(&mut connections, most).await;
                connections.trial.choice()
            }
        };
        connections.open.truncate(number);
        if connections.open.is_empty() {
            // The open ones broke.
            connections.open.push(self.connect().await?);
        }
        Ok(connections)
    }

    async fn connect(&self) -> Result<Http2<Connected>, Unconnected> {
        Ok(Http2::begin(self.connector.connect(&self.url).await?).await?)
    }

    /// Maximal number of streams of the next rank.
    async fn most(&self, connections: &mut Connections) -> usize {
        let Some(connection) = connections.open.first_mut() else { return 1 };
        let nothing = wire::message(&MeasureRequest::default());
        match connection.measure(self.url.clone(), nothing, Instant::now(), ARRIVING).await {
            Ok(answer) => (answer.most_stripes as usize).clamp(1, MOST_STRIPES),
            Err(status) => {
                debug!(%status, "the next rank takes one stream");
                if status.code() != tonic::Code::Unimplemented {
                    connections.open.clear();
                }
                1
            }
        }
    }

    /// Connects until there are so many; whether there are.
    async fn grow(&self, open: &mut Vec<Http2<Connected>>, number: usize) -> bool {
        while open.len() < number {
            match self.connect().await {
                Ok(connection) => open.push(connection),
                Err(error) => {
                    debug!(%error, connections = open.len(), "the next rank takes no more connections");
                    return false;
                }
            }
        }
        true
    }

    async fn measure(&self, connections: &mut Connections, most: usize) {
        let began = Instant::now();
        let filler = wire::message(&MeasureRequest { filler: vec![0; FILLER_BYTES] });
        while let Some(streams) = connections.trial.next(most)
            && began.elapsed() < IN_ALL
            && self.grow(&mut connections.open, streams).await
        {
            match self.carried(&mut connections.open, streams, &filler).await {
                Ok(carried) => connections.trial.add(carried),
                Err(status) => {
                    debug!(%status, streams, "it could not be measured how much the streams to the next rank carry");
                    return;
                }
            }
        }
    }

    /// Measures the throughput of `streams` connections together. Broken ones are removed.
    async fn carried(
        &self,
        open: &mut Vec<Http2<Connected>>,
        streams: usize,
        filler: &Bytes,
    ) -> Result<Carried, Status> {
        let (began, until) = (Instant::now(), Instant::now() + SENDING);
        let mut sending = Vec::new();
        for mut connection in open.drain(..streams.min(open.len())) {
            let (url, filler) = (self.url.clone(), filler.clone());
            sending.push(AbortOnDropHandle::new(tasks::spawn(async move {
                let answer = connection.measure(url, filler, until, ARRIVING).await;
                (connection, answer)
            })));
        }
        let (mut bytes, mut wrong) = (0_u64, None);
        for sent in sending {
            match sent.await {
                Ok((connection, Ok(answer))) => {
                    // The other side's number is not trusted.
                    bytes = bytes.saturating_add(answer.received_bytes);
                    open.push(connection);
                }
                Ok((_, Err(status))) => wrong = Some(status),
                Err(error) => wrong = Some(Status::internal(error.to_string())),
            }
        }
        match wrong {
            Some(status) => Err(status),
            None => Ok(Carried { streams, bytes_per_second: bytes as f64 / began.elapsed().as_secs_f64() }),
        }
    }
}
