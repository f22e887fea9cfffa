//! The contents that a job needs: what the coordinator must keep as long as the job.

use super::JobSpec;
use crate::ids::ContentHash;

/// A job's use of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContentUse {
    /// The manifest of its pictures: what that names is needed too.
    Images,
    /// An embedding that it starts from or draws with.
    Embedding,
    /// The checkpoint that it goes on from.
    Checkpoint,
}

impl ContentUse {
    /// The name, as stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Embedding => "embedding",
            Self::Checkpoint => "checkpoint",
        }
    }
}

impl JobSpec {
    /// Every uploaded content that the job names, each once for each use. What is in files or folders is not among them.
    pub fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        let mut all = self.work.facts().contents();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::parse_job_toml;

    fn uri(name: &str) -> String {
        ContentHash::of(name.as_bytes()).uri()
    }

    /// Every content that a job's JSON names, wherever it stands.
    fn named_anywhere(spec: &JobSpec) -> Vec<ContentHash> {
        let json = serde_json::to_string(spec).unwrap();
        let uris =
            json.match_indices("artifact://sha256/").map(|(at, prefix)| &json[at..at + prefix.len() + 64]);
        let mut found: Vec<ContentHash> = uris.map(|uri| ContentHash::from_uri(uri).unwrap()).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn every_content_that_a_job_names_is_known_with_its_use() {
        let [one, other, start, own, checkpoint, drawn] =
            ["one", "other", "start", "own", "checkpoint", "drawn"].map(uri);
        let learning = format!(
            "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[train]\nnum_vectors = 2\n\
             resume_from_checkpoint = \"{checkpoint}\"\n\
             [[concepts]]\nplaceholder_token = \"<a>\"\ninitializer_embedding = \"{start}\"\nimages = \"{one}\"\n\
             [[concepts]]\nplaceholder_token = \"<b>\"\ninitializer_token = \"b\"\n\
             [[concepts.folders]]\nimages = \"{other}\"\n[[concepts.folders]]\nimages = \"{one}\"\n"
        );
        let spec = parse_job_toml(&learning).unwrap();
        let contents = spec.contents();
        let uses = |used: ContentUse| contents.iter().filter(|(one, _)| *one == used).count();
        assert_eq!([ContentUse::Images, ContentUse::Embedding, ContentUse::Checkpoint].map(uses), [2, 1, 1]);
        let single = format!(
            "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nfolders = [{{ images = \"{one}\" }}]\n\
             [train]\nplaceholder_token = \"<a>\"\ninitializer_embedding = \"{own}\"\n"
        );
        let drawing = format!(
            "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a\"]\n\
             embeddings = [\"/e/a.pt\", \"{drawn}#cat.pt\"]\n"
        );
        let words = format!(
            "kind = \"gpt2_finetune\"\n[model]\nbase = \"/m\"\n[gpt2]\ntokens = \"/t\"\n\
             resume_from_checkpoint = \"{checkpoint}\"\n"
        );
        for job in [learning, single, drawing, words] {
            let spec = parse_job_toml(&job).unwrap();
            let mut hashes: Vec<ContentHash> = spec.contents().into_iter().map(|(_, hash)| hash).collect();
            hashes.sort_unstable();
            assert_eq!(hashes, named_anywhere(&spec), "{job}");
            assert!(!hashes.is_empty());
        }
    }
}
