//! The model hubs from which jobs may fetch; pure.

use std::fmt;

/// Hubs that jobs may have models and pictures fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hubs {
    /// Any hub that this worker's environment names.
    Everything,
    /// These; none: nothing.
    Of(Vec<Hub>),
}

/// A hub, by its host or by its whole address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    /// "https"; none: any.
    scheme: Option<String>,
    /// HOST, or HOST:PORT where the port is not the scheme's own. In lower case.
    authority: String,
    /// Without slashes at its ends. Counts only beside a scheme.
    path: String,
}

impl Hub {
    /// Reads `HOST`, `HOST:PORT`, or a URL of http or https; none: it is nothing of the kind.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let own_port = match scheme.as_deref() {
            None => None,
            Some("https") => Some(":443"),
            Some("http") => Some(":80"),
            Some(_) => return None,
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.:[]".contains(letter);
        let fits = !authority.is_empty()
            && authority.chars().all(is_letter)
            && authority.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[')
            && !path.contains(['?', '#', '@'])
            && (scheme.is_some() || !rest.contains('/'));
        if !fits {
            return None;
        }
        let authority = authority.to_ascii_lowercase();
        let authority =
            own_port.and_then(|port| authority.strip_suffix(port)).unwrap_or(&authority).to_owned();
        Some(Self { scheme, authority, path: path.trim_matches('/').to_owned() })
    }

    /// Whether `endpoint`, which has a scheme, is this hub.
    fn is(&self, endpoint: &Self) -> bool {
        match self.scheme {
            Some(_) => self == endpoint,
            None => self.authority == endpoint.authority,
        }
    }
}

impl fmt::Display for Hub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, authority, path } = self;
        match scheme {
            Some(scheme) if path.is_empty() => write!(formatter, "{scheme}://{authority}"),
            Some(scheme) => write!(formatter, "{scheme}://{authority}/{path}"),
            None => formatter.write_str(authority),
        }
    }
}

impl Hubs {
    /// Whether the hub at this URL is one of them. Where a hub sends its clients on to for a file's content is its affair.
    pub fn allow(&self, endpoint: &str) -> bool {
        let Self::Of(hubs) = self else { return true };
        let endpoint = Hub::parse(endpoint).filter(|endpoint| endpoint.scheme.is_some());
        endpoint.is_some_and(|endpoint| hubs.iter().any(|hub| hub.is(&endpoint)))
    }
}

impl fmt::Display for Hubs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => formatter.write_str("everything"),
            Self::Of(hubs) => write_list(formatter, hubs.iter()),
        }
    }
}

/// For people: "a, b", or "nothing".
pub(super) fn write_list<T: fmt::Display>(
    formatter: &mut fmt::Formatter<'_>,
    entries: impl Iterator<Item = T>,
) -> fmt::Result {
    let entries: Vec<String> = entries.map(|entry| entry.to_string()).collect();
    if entries.is_empty() { formatter.write_str("nothing") } else { formatter.write_str(&entries.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hubs(entries: &[&str]) -> Hubs {
        Hubs::Of(entries.iter().map(|entry| Hub::parse(entry).unwrap()).collect())
    }

    #[test]
    fn a_hub_is_known_by_its_host_or_its_whole_address() {
        let huggingface = "https://huggingface.co";
        for entry in
            ["huggingface.co", "HuggingFace.co", "https://huggingface.co/", "https://huggingface.co:443"]
        {
            assert!(hubs(&[entry]).allow(huggingface), "{entry}");
        }
        for entry in [
            "co",
            "evil-huggingface.co",
            "huggingface.co.evil",
            "huggingface.co:8443",
            "http://huggingface.co",
            "https://huggingface.co/mirror",
        ] {
            assert!(!hubs(&[entry]).allow(huggingface), "{entry}");
        }
        let mirror = "http://10.0.0.9:8080/hf";
        assert!(hubs(&["10.0.0.9:8080"]).allow(mirror) && hubs(&["http://10.0.0.9:8080/hf/"]).allow(mirror));
        assert!(!hubs(&["10.0.0.9"]).allow(mirror) && !hubs(&["http://10.0.0.9:8080"]).allow(mirror));
        assert!(!hubs(&[]).allow(huggingface) && Hubs::Everything.allow(huggingface));
        assert!(!hubs(&["huggingface.co"]).allow("") && !hubs(&["huggingface.co"]).allow("huggingface.co"));
    }

    #[test]
    fn what_is_no_hub_is_not_read_as_one() {
        for wrong in [
            "",
            "*",
            "https://",
            "ftp://x",
            "a b",
            "https://user@host",
            "host/path",
            "https://x/?y",
            "-x",
            "/",
        ] {
            assert_eq!(Hub::parse(wrong), None, "{wrong:?}");
        }
    }
}
