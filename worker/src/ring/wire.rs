//! gRPC bodies of a ring's stream, framed by hand: a chunk's payload is never copied into a message, nor out of one. What
//! goes over the wire is what every gRPC peer makes of `ExchangeRequest`.

use std::{collections::VecDeque, io::IoSlice, ops::Range};

use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use prost::{
    DecodeError, Message as _,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use ringtune_proto::v1::{ExchangeRequest, RingChunk, exchange_request::Part};
use ringtune_shared::ring::Payload;

/// A gRPC message begins with a byte that says whether it is compressed, and its length in four.
const PREFIX_BYTES: usize = 5;
/// The largest payload of a chunk.
pub(super) const MOST_SEGMENT_BYTES: u32 = 1 << 20;
/// Largest HTTP/2 frame: a chunk and what is around it. The default, 16 KiB, costs 64 times the system calls.
pub const MOST_FRAME_BYTES: u32 = MOST_SEGMENT_BYTES + (1 << 10);
/// Bytes on the way of one stream and one connection: there is one stream a connection.
pub const WINDOW_BYTES: u32 = 4 << 20;
/// `ExchangeRequest.chunk` and `RingChunk.payload`, as ring.proto numbers them.
const CHUNK: u32 = 2;
const PAYLOAD: u32 = 5;
/// Of a chunk, before its payload: the prefix, two keys with lengths, four numbers, a checksum and a slot, each at its longest.
const HEAD_BYTES: usize = 80;
/// Around a chunk's payload there may be so much: fields that this version does not know. A payload that waits to be used keeps all that
/// it came with in memory, and only its own bytes are counted.
const MOST_AROUND_BYTES: usize = 1 << 10;
/// Smaller pieces are put together, so that a body that is cut into single bytes takes no more than its bytes.
const SMALL_PIECE_BYTES: usize = 4096;

/// A message on its way: what is before a chunk's payload, and the payload where it lies.
#[derive(Debug)]
pub(super) struct Piece {
    head: [u8; HEAD_BYTES],
    /// Unwritten part of the head.
    left: Range<usize>,
    /// A chunk's payload, or another message as a whole.
    payload: Payload,
    /// Written bytes of it.
    written: usize,
}

impl Piece {
    /// A message as it is sent.
    pub(super) fn of(message: ExchangeRequest) -> Self {
        match message.part {
            Some(Part::Chunk(mut chunk)) => {
                let payload = std::mem::take(&mut chunk.payload);
                Self::of_chunk(&chunk, payload.into())
            }
            part => Self::of_message(&ExchangeRequest { part }),
        }
    }

    /// A chunk as it is sent, but for its payload, which comes with it.
    pub(super) fn of_chunk(chunk: &RingChunk, payload: Payload) -> Self {
        let mut head = [0; HEAD_BYTES];
        let bytes = chunk_head(&mut head, chunk, payload.len());
        Self { head, left: 0..bytes, payload, written: 0 }
    }

    /// Any other message.
    pub(super) fn of_message(message: &impl prost::Message) -> Self {
        Self::of_encoded(self::message(message))
    }

    /// A message encoded by [`message`].
    pub(super) fn of_encoded(message: Bytes) -> Self {
        Self { head: [0; HEAD_BYTES], left: 0..0, payload: message.into(), written: 0 }
    }

    /// Unwritten part of the payload.
    fn rest(&self) -> &[u8] {
        self.payload.get(self.written..).unwrap_or_default()
    }

    fn head(&self) -> &[u8] {
        self.head.get(self.left.clone()).unwrap_or_default()
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.left.len() + self.payload.len() - self.written
    }

    fn chunk(&self) -> &[u8] {
        if self.left.is_empty() { self.rest() } else { self.head() }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = [self.head(), self.rest()];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }

    fn advance(&mut self, count: usize) {
        let of_head = count.min(self.left.len());
        assert!(count <= self.remaining(), "advanced by {count} of {} bytes", self.remaining());
        self.left.start += of_head;
        self.written += count - of_head;
    }
}

/// Any other message.
pub(super) fn message(message: &impl prost::Message) -> Bytes {
    let mut framed = prefixed(message.encoded_len());
    // Only a full buffer is an error, and this one grows.
    let _ = message.encode(&mut framed);
    framed.freeze()
}

/// Encodes a chunk's message without the payload, which is its last field; returns its length.
fn chunk_head(head: &mut [u8; HEAD_BYTES], rest: &RingChunk, payload: usize) -> usize {
    let payload_field =
        if payload == 0 { 0 } else { key_len(PAYLOAD) + encoded_len_varint(payload as u64) + payload };
    let chunk = rest.encoded_len() + payload_field;
    let message = key_len(CHUNK) + encoded_len_varint(chunk as u64) + chunk;
    let mut room = head.as_mut_slice();
    room.put_u8(0);
    room.put_u32(u32::try_from(message).unwrap_or(u32::MAX));
    encode_key(CHUNK, WireType::LengthDelimited, &mut room);
    encode_varint(chunk as u64, &mut room);
    // There is room for the largest numbers.
    let _ = rest.encode(&mut room);
    if payload > 0 {
        encode_key(PAYLOAD, WireType::LengthDelimited, &mut room);
        encode_varint(payload as u64, &mut room);
    }
    HEAD_BYTES - room.len()
}

fn prefixed(message: usize) -> BytesMut {
    let mut head = BytesMut::with_capacity(PREFIX_BYTES + 64);
    head.put_u8(0);
    head.put_u32(u32::try_from(message).unwrap_or(u32::MAX));
    head
}

/// The one message of an answer.
///
/// # Errors
/// It is none.
pub(super) fn answer<M: prost::Message + Default>(body: &[u8]) -> Result<M, Unreadable> {
    let Some((&[compressed, ..], message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(Unreadable::Absent);
    };
    if compressed != 0 {
        return Err(Unreadable::Compressed);
    }
    Ok(M::decode(message)?)
}

/// Why what came is no message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("there is no message")]
    Absent,
    #[error("its message is compressed, which was not agreed on")]
    Compressed,
    #[error("its message has {got} bytes; allowed: {allowed}")]
    TooLong { got: usize, allowed: usize },
    #[error("its message cannot be read: {0}")]
    Broken(#[from] DecodeError),
}

/// Takes a body's pieces, however they are cut, and gives messages.
#[derive(Debug)]
pub(super) struct Messages {
    pieces: Pieces,
    most: usize,
}

impl Messages {
    /// Of at most `most` bytes each.
    pub(super) fn new(most: usize) -> Self {
        Self { pieces: Pieces::default(), most }
    }

    /// The next piece of the body.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.pieces.push(piece);
    }

    /// Whether a message has begun that is not there yet.
    pub(super) fn is_within(&self) -> bool {
        self.pieces.bytes > 0
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    /// It is none, or too long.
    pub(super) fn next(&mut self) -> Result<Option<ExchangeRequest>, Unreadable> {
        let Some(prefix) = self.pieces.peek::<PREFIX_BYTES>() else { return Ok(None) };
        let [compressed, length @ ..] = prefix;
        if compressed != 0 {
            return Err(Unreadable::Compressed);
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > self.most {
            return Err(Unreadable::TooLong { got: length, allowed: self.most });
        }
        if self.pieces.bytes < PREFIX_BYTES + length {
            return Ok(None);
        }
        self.pieces.close_the_row();
        self.pieces.advance(PREFIX_BYTES);
        let message = ExchangeRequest::decode((&mut self.pieces).take(length))?;
        match &message.part {
            Some(Part::Chunk(chunk)) if length > chunk.payload.len() + MOST_AROUND_BYTES => {
                let allowed = chunk.payload.len() + MOST_AROUND_BYTES;
                Err(Unreadable::TooLong { got: length, allowed })
            }
            _ => Ok(Some(message)),
        }
    }
}

/// Pieces in a row. What lies in one of them is cut out of it without a copy.
#[derive(Debug, Default)]
struct Pieces {
    /// None is empty.
    row: VecDeque<Bytes>,
    /// Small ones behind the row, which is not empty then.
    small: BytesMut,
    /// Of all.
    bytes: usize,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        if piece.len() < SMALL_PIECE_BYTES && !self.row.is_empty() {
            self.small.extend_from_slice(&piece);
        } else if !piece.is_empty() {
            self.close_the_row();
            self.row.push_back(piece);
        }
    }

    /// Before anything is read.
    fn close_the_row(&mut self) {
        if !self.small.is_empty() {
            self.row.push_back(self.small.split().freeze());
        }
    }

    /// The first bytes, which stay.
    fn peek<const COUNT: usize>(&self) -> Option<[u8; COUNT]> {
        let mut first = [0; COUNT];
        let mut all = self.row.iter().flat_map(|piece| piece.iter()).chain(&self.small);
        for byte in &mut first {
            *byte = *all.next()?;
        }
        Some(first)
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.row.front().map_or(&[], |piece| piece)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "advanced by {count} of {} bytes", self.bytes);
        self.bytes -= count;
        while let Some(piece) = self.row.front_mut() {
            if count < piece.len() {
                piece.advance(count);
                return;
            }
            count -= piece.len();
            self.row.pop_front();
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        match self.row.front_mut() {
            Some(piece) if piece.len() > count => {
                self.bytes -= count;
                piece.split_to(count)
            }
            Some(piece) if piece.len() == count => {
                self.bytes -= count;
                let whole = std::mem::take(piece);
                self.row.pop_front();
                whole
            }
            _ => {
                let mut copy = BytesMut::with_capacity(count);
                copy.put(self.take(count));
                copy.freeze()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringtune_proto::v1::{RingClose, RingOpen, RingPulse, RingSlot};

    use super::*;

    fn chunk(payload: Vec<u8>) -> ExchangeRequest {
        let checksum = Some(7);
        let chunk = RingChunk {
            epoch: 3,
            collective: 1 << 40,
            hop: 0,
            segment: 9,
            payload: payload.into(),
            checksum,
            slot: None,
        };
        ExchangeRequest { part: Some(Part::Chunk(chunk)) }
    }

    fn body(messages: &[ExchangeRequest]) -> Vec<u8> {
        let pieces = messages.iter().map(|message| Piece::of(message.clone()));
        pieces.flat_map(|mut piece| piece.copy_to_bytes(piece.remaining())).collect()
    }

    fn all(messages: &mut Messages) -> Vec<ExchangeRequest> {
        std::iter::from_fn(|| messages.next().unwrap()).collect()
    }

    #[test]
    fn what_is_framed_is_what_prost_reads() {
        let open = RingOpen { job_id: "j".into(), rank: 1, ..RingOpen::default() };
        for message in [
            chunk(vec![1, 2, 3]),
            chunk(Vec::new()),
            chunk(vec![0; 300_000]),
            ExchangeRequest { part: Some(Part::Open(open)) },
            ExchangeRequest { part: Some(Part::Pulse(RingPulse { epoch: 5 })) },
            ExchangeRequest { part: Some(Part::Close(RingClose {})) },
        ] {
            let bytes = body(std::slice::from_ref(&message));
            let (prefix, rest) = bytes.split_at(PREFIX_BYTES);
            assert_eq!(prefix, [&[0][..], &(rest.len() as u32).to_be_bytes()].concat());
            assert_eq!(ExchangeRequest::decode(rest).unwrap(), message);
        }
    }

    #[test]
    fn a_payload_in_one_piece_is_not_copied() {
        let mut piece = Piece::of(chunk(vec![5; 1 << 20]));
        let place = piece.payload.as_ptr();
        // 1. It is written from where it lies.
        let mut slices = [IoSlice::new(&[]); 3];
        assert_eq!(piece.chunks_vectored(&mut slices), 2);
        assert_eq!((slices[0].len(), slices[1].as_ptr()), (piece.left.len(), place));
        let head = piece.copy_to_bytes(piece.left.len());
        assert_eq!(piece.chunks_vectored(&mut [IoSlice::new(&[])]), 1);
        assert_eq!((piece.chunk().as_ptr(), piece.remaining()), (place, 1 << 20));
        // 2. It is read from where it came.
        let mut messages = Messages::new(2 << 20);
        messages.push(head);
        assert_eq!(messages.next(), Ok(None));
        assert!(messages.is_within());
        assert_eq!((piece.rest().len(), piece.written), (1 << 20, 0));
        let Payload::Bytes(payload) = piece.payload else { panic!("it was lent") };
        messages.push(payload);
        let Some(ExchangeRequest { part: Some(Part::Chunk(chunk)) }) = messages.next().unwrap() else {
            panic!("no chunk");
        };
        assert_eq!((chunk.payload.as_ptr(), chunk.payload.len()), (place, 1 << 20));
        assert!(!messages.is_within());
    }

    #[test]
    fn the_largest_numbers_have_room() {
        let largest = RingChunk {
            epoch: u64::MAX,
            collective: u64::MAX,
            hop: u32::MAX,
            segment: u32::MAX,
            payload: vec![1; 1 << 20].into(),
            checksum: Some(u32::MAX),
            slot: Some(RingSlot { number: u32::MAX, bytes: u32::MAX }),
        };
        let message = ExchangeRequest { part: Some(Part::Chunk(largest)) };
        let bytes = body(std::slice::from_ref(&message));
        assert_eq!(ExchangeRequest::decode(&bytes[PREFIX_BYTES..]).unwrap(), message);
        // A payload's length may take two bytes more.
        assert!(Piece::of(message).left.len() + 2 <= HEAD_BYTES);
    }

    #[test]
    fn a_body_in_single_bytes_takes_no_more_than_its_bytes() {
        let sent = chunk((0..=255).cycle().take(100_000).collect());
        let mut messages = Messages::new(1 << 20);
        let mut came = None;
        for byte in body(std::slice::from_ref(&sent)) {
            assert_eq!(came, None);
            messages.push(Bytes::copy_from_slice(&[byte]));
            assert!(messages.pieces.row.len() <= 1);
            came = messages.next().unwrap();
        }
        assert_eq!(came, Some(sent));
    }

    #[test]
    fn what_is_no_message_is_an_error_before_it_is_waited_for() {
        let mut messages = Messages::new(100);
        messages.push(Bytes::from_static(&[1, 0, 0, 0, 1]));
        assert_eq!(messages.next(), Err(Unreadable::Compressed));
        let mut messages = Messages::new(100);
        messages.push(Bytes::from_static(&[0, 0, 0, 0, 101]));
        assert_eq!(messages.next(), Err(Unreadable::TooLong { got: 101, allowed: 100 }));
        let mut messages = Messages::new(100);
        messages.push(Bytes::from_static(&[0, 0, 0, 0, 2, 0xff, 0xff]));
        assert!(matches!(messages.next(), Err(Unreadable::Broken(_))));
    }

    #[test]
    fn little_may_come_around_a_payload() {
        let unknown = |bytes: usize| {
            let mut message = chunk(vec![1; 4]).encode_to_vec();
            encode_key(100, WireType::LengthDelimited, &mut message);
            encode_varint(bytes as u64, &mut message);
            message.resize(message.len() + bytes, 0);
            let mut messages = Messages::new(1 << 20);
            messages.push(prefixed(message.len()).freeze());
            messages.push(message.into());
            messages.next()
        };
        assert_eq!(unknown(500), Ok(Some(chunk(vec![1; 4]))));
        assert!(matches!(unknown(1 << 19), Err(Unreadable::TooLong { allowed: 1028, .. })));
    }

    proptest! {
        #[test]
        fn messages_come_whole_however_the_body_is_cut(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6),
            cuts in prop::collection::vec(1usize..50, 1..200),
        ) {
            let sent: Vec<_> = payloads.into_iter().map(chunk).collect();
            let mut rest = Bytes::from(body(&sent));
            let (mut messages, mut came) = (Messages::new(1000), Vec::new());
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                messages.push(rest.split_to((*cuts.next().unwrap()).min(rest.len())));
                came.extend(all(&mut messages));
            }
            prop_assert_eq!(came, sent);
            prop_assert!(!messages.is_within());
        }
    }
}
