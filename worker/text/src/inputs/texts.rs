//! A .txt file is a document, byte for byte.

use std::io::Read as _;

use super::{Broken, InputFile, Sink, sink::DocumentPlace};
use crate::{Error, limits::LONGEST_DOCUMENT};

pub(super) fn read(source: &InputFile, sink: &mut dyn Sink) -> Result<(), Error> {
    let broken = |problem| Broken { place: DocumentPlace::File(source.identity.name.clone()), problem };
    if source.identity.size > LONGEST_DOCUMENT {
        let problem = format!(
            "has {} bytes; a .txt file is one document, of at most {LONGEST_DOCUMENT}: cut it up",
            source.identity.size
        );
        return sink.broken(broken(problem));
    }
    let mut bytes = Vec::new();
    // Files of /proc and the like have more than they say.
    let mut file = source.open()?.take(LONGEST_DOCUMENT);
    file.read_to_end(&mut bytes).map_err(Error::io("read", &source.path))?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => sink.document(text)?,
        Err(error) => {
            let problem = format!("is not UTF-8 from byte {} on", error.valid_up_to());
            sink.broken(broken(problem))?;
        }
    }
    sink.advance(bytes.len() as u64);
    Ok(())
}
