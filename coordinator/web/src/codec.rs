//! Messages whose types are known at run time only, on their way to and from the API's services.

use bytes::Buf as _;
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// What is sent: a message, or why there is none.
pub(crate) type Sent = Result<DynamicMessage, Status>;

/// For calls that answer with this type.
pub(crate) struct DynamicCodec(pub(crate) MessageDescriptor);

/// Writes messages.
pub(crate) struct DynamicEncoder;

/// Reads messages of this type.
pub(crate) struct DynamicDecoder(MessageDescriptor);

impl Codec for DynamicCodec {
    type Encode = Sent;
    type Decode = DynamicMessage;
    type Encoder = DynamicEncoder;
    type Decoder = DynamicDecoder;

    fn encoder(&mut self) -> DynamicEncoder {
        DynamicEncoder
    }

    fn decoder(&mut self) -> DynamicDecoder {
        DynamicDecoder(self.0.clone())
    }
}

impl Encoder for DynamicEncoder {
    type Item = Sent;
    type Error = Status;

    fn encode(&mut self, message: Sent, bytes: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message?
            .encode(bytes)
            .map_err(|error| Status::internal(format!("a message cannot be written: {error}")))
    }
}

impl Decoder for DynamicDecoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        // As one piece: fields of bytes are then parts of it.
        let whole = bytes.copy_to_bytes(bytes.remaining());
        let message = DynamicMessage::decode(self.0.clone(), whole);
        message.map(Some).map_err(|error| Status::internal(format!("a message cannot be read: {error}")))
    }
}
