//! Bytes that nobody can predict.

/// The operating system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no random bytes, without which there are no keys or tokens")]
pub struct Unpredictable;

/// As many as asked for, from the operating system by way of ring.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], Unpredictable> {
    let mut bytes = [0; N];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).map_err(|_| Unpredictable)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_draws_are_the_same() {
        assert_ne!(bytes::<32>().unwrap(), bytes::<32>().unwrap());
    }
}
