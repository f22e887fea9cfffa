//! Just enough DER to change what was signed and to sign it again, so that changes reach those who read it.

use rcgen::{KeyPair, SigningKey as _};

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 3;
/// ecdsa-with-SHA256. Source: RFC 5758, 3.2.
const ALGORITHM: [u8; 12] = [SEQUENCE, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];

/// A tag, the length of its content, and the content.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut bytes = vec![tag];
    match length {
        0..0x80 => bytes.push(length as u8),
        0x80..0x100 => bytes.extend([0x81, length as u8]),
        0x100..0x1_0000 => bytes.extend([0x82, (length >> 8) as u8, length as u8]),
        _ => bytes.extend([0x83, (length >> 16) as u8, (length >> 8) as u8, length as u8]),
    }
    bytes.extend(content);
    bytes
}

/// The content of what stands first; none where it is cut.
fn content(bytes: &[u8]) -> Option<&[u8]> {
    let (header, length) = match *bytes.get(1)? {
        long @ 0x81..=0x84 => {
            let digits = usize::from(long - 0x80);
            let length = bytes.get(2..2 + digits)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (2 + digits, length)
        }
        short => (2, usize::from(short)),
    };
    bytes.get(header..header.checked_add(length)?)
}

/// What a certificate or a request says, without its signature; none where it is cut.
pub(crate) fn signed_part(der: &[u8]) -> Option<Vec<u8>> {
    content(content(der)?).map(<[u8]>::to_vec)
}

/// A key as a file has it.
pub(crate) fn key_pem(key: &KeyPair) -> String {
    pem::encode(&pem::Pem::new("PRIVATE KEY", key.serialize_der()))
}

/// Signs what it says.
pub(crate) fn sign(part: &[u8], key: &KeyPair) -> Vec<u8> {
    let part = tagged(SEQUENCE, part);
    let signature = key.sign(&part).unwrap();
    whole(part, &signature)
}

/// The same with the signature of something else.
pub(crate) fn sign_falsely(part: &[u8], key: &KeyPair) -> Vec<u8> {
    let part = tagged(SEQUENCE, part);
    let signature = key.sign(b"something else").unwrap();
    whole(part, &signature)
}

fn whole(mut part: Vec<u8>, signature: &[u8]) -> Vec<u8> {
    part.extend(ALGORITHM);
    part.extend(tagged(BIT_STRING, &[&[0], signature].concat()));
    tagged(SEQUENCE, &part)
}
