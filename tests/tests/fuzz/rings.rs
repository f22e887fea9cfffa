//! Messages between neighbours, from a stranger.

use std::time::Duration;

use bytes::Bytes;
use ringtune_fuzzing::Path;
use ringtune_proto::v1::{self, ExchangeRequest, exchange_request::Part};
use ringtune_shared::version::RING_PROTOCOLS;
use tonic::transport::Endpoint;

use crate::{
    MOST_BYTES, beside_a_ring,
    calls::{Answer, call, input, mend},
};

const EXCHANGE: &str = "/ringtune.v1.RingService/Exchange";
const FETCH_STATE: &str = "/ringtune.v1.RingService/FetchState";
/// Who is not refused at once waits for a seat or a state. A refusal that comes later counts as such a wait.
const MOMENT: Duration = Duration::from_millis(10);
/// What a call of FetchState begins with, as no other does.
const FETCH: u8 = b'F';

/// The parts of a stream from that rank to the next one, in the ring of that epoch.
fn exchange(job_id: &str, epoch: u64, rank: i32) -> Vec<u8> {
    let open = v1::RingOpen {
        job_id: job_id.to_owned(),
        epoch,
        rank,
        world_size: 2,
        protocol: RING_PROTOCOLS.max,
        max_segment_bytes: 1 << 20,
        ..v1::RingOpen::default()
    };
    let chunk = |collective, hop| v1::RingChunk {
        epoch,
        collective,
        hop,
        payload: Bytes::from(vec![0x3f; 64]),
        checksum: Some(7),
        ..Default::default()
    };
    let parts = [
        Part::Open(open),
        Part::Pulse(v1::RingPulse { epoch }),
        Part::Chunk(chunk(1, 0)),
        Part::Chunk(chunk(u64::MAX, u32::MAX)),
        Part::Close(v1::RingClose {}),
    ];
    input(&parts.map(|part| ExchangeRequest { part: Some(part) }))
}

/// A wish for a state. Its message has several fields: the first is a text, so that it goes as an input's one field.
fn fetch_state(job_id: &str, epoch: u64) -> Vec<u8> {
    let wish = v1::FetchStateRequest { job_id: job_id.to_owned(), epoch, rank: 1, step: 1 };
    [&[FETCH][..], &prost::Message::encode_to_vec(&wish)].concat()
}

/// The body of the one call or of the other.
fn mend_either(bytes: Vec<u8>) -> Vec<u8> {
    match bytes.split_first() {
        Some((&FETCH, message)) => [&[FETCH][..], &ringtune_tests::http2::message(message)].concat(),
        _ => mend(bytes),
    }
}

#[test]
fn ring() {
    beside_a_ring(|runtime, bystander| {
        let workers = &bystander.cluster.workers;
        let channels = {
            let _runtime = runtime.enter();
            [0, 1].map(|place: usize| {
                Endpoint::from_shared(format!("http://{}", workers[place].grpc)).unwrap().connect_lazy()
            })
        };
        let job = bystander.job.clone();
        let other = uuid::Uuid::now_v7().to_string();
        let handle = runtime.handle().clone();
        // Somebody who knows all that a neighbour knows comes too late: the place is taken.
        for channel in &channels {
            for rank in [0, 1] {
                handle.block_on(call(channel, EXCHANGE, &mend(exchange(&job, 1, rank)), MOMENT));
            }
        }
        Path {
            name: "ring",
            words: vec![job.clone(), other.clone()],
            // Each is of a job or an epoch that may still come.
            valid: vec![exchange(&job, 2, 1), exchange(&other, 1, 0), fetch_state(&job, 1)],
            mend: mend_either,
            most_bytes: MOST_BYTES,
            read: Box::new(move |bytes| {
                let (path, body) = match bytes.split_first() {
                    Some((&FETCH, message)) => (FETCH_STATE, message),
                    _ => (EXCHANGE, bytes),
                };
                let [one, other] = &channels;
                let (one, other) = (call(one, path, body, MOMENT), call(other, path, body, MOMENT));
                let (one, other) = handle.block_on(async { tokio::join!(one, other) });
                one == Answer::Waits || other == Answer::Waits
            }),
        }
    });
}
