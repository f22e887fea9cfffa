//! Lines that somebody typed, cut or made up.

use std::fmt::Debug;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ringtune_fuzzing::Path;
use ringtune_security::{AccessToken, Cluster, JoinToken, Role, TokenError, TokenId};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{FOLDER, MOST_BYTES};

/// Makes the checksum fit again. What is no base64 becomes some.
fn mend(bytes: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8_lossy(&bytes);
    let Some((head, body)) = text.split_once('.') else { return bytes };
    let letter = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { 'A' };
    let mut body: String = body.chars().map(letter).collect();
    // No text of base64 has one letter more than a multiple of four.
    if body.len() % 4 == 1 {
        body.pop();
    }
    let Ok(mut token) = URL_SAFE_NO_PAD.decode(&body) else { return bytes };
    token.truncate(token.len().saturating_sub(4));
    let sum = Sha256::new().chain_update(head.get(..3).unwrap_or(head)).chain_update(&token).finalize();
    token.extend(&sum[..4]);
    format!("{head}.{}", URL_SAFE_NO_PAD.encode(token)).into_bytes()
}

/// Whether a line is taken: then it is written as it was read. No error quotes it.
fn read<T: FromStr<Err = TokenError> + Debug>(bytes: &[u8], reveal: impl Fn(&T) -> String) -> bool {
    let text = String::from_utf8_lossy(bytes);
    match text.parse::<T>() {
        Ok(token) => {
            assert_eq!(reveal(&token), text.trim());
            let body = text.trim().split_once('.').unwrap().1.to_owned();
            assert!(!format!("{token:?}").contains(&body));
            true
        }
        Err(error) => {
            let error = error.to_string();
            let secret = text.split_once('.').map(|(_, body)| body).filter(|body| body.len() > 12);
            assert!(!error.is_empty() && !secret.is_some_and(|body| error.contains(body)));
            false
        }
    }
}

fn words() -> Vec<String> {
    ["rtj1.", "rta1.", "rtj2.", "rtj", ".", "1", "4294967296", " ", "-", "_", "=", "AAAA"]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn join_token() {
    let token =
        |role| JoinToken::new(role, [7; 32], Cluster::from(Uuid::new_v4())).unwrap().reveal().into_bytes();
    Path {
        name: "join-token",
        words: words(),
        valid: Role::ALL.map(token).to_vec(),
        mend,
        most_bytes: MOST_BYTES,
        read: Box::new(|bytes| read::<JoinToken>(bytes, JoinToken::reveal)),
    }
    .fuzz(FOLDER);
}

#[test]
fn access_token() {
    let token = || AccessToken::new().unwrap().reveal().into_bytes();
    Path {
        name: "access-token",
        words: words(),
        valid: vec![token(), token()],
        mend,
        most_bytes: MOST_BYTES,
        read: Box::new(|bytes| {
            // Ids are typed too, by who revokes a token.
            if let Ok(id) = String::from_utf8_lossy(bytes).parse::<TokenId>() {
                assert_eq!(id.to_string().len(), 16);
            }
            read::<AccessToken>(bytes, AccessToken::reveal)
        }),
    }
    .fuzz(FOLDER);
}
