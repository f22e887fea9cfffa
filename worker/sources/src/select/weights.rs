//! Weights in safetensors files, as diffusers and transformers name them.

/// One file, or an index and its shards. Both places of a variant's name that diffusers has used are known.
pub(super) fn weights(files: &[&str], stem: &str, variant: &str) -> Option<Vec<String>> {
    let dotted = if variant.is_empty() { String::new() } else { format!(".{variant}") };
    let single = format!("{stem}{dotted}.safetensors");
    if files.contains(&single.as_str()) {
        return Some(vec![single]);
    }
    let index = format!("{stem}.safetensors.index{dotted}.json");
    let is_shard = |file: &&&str| {
        let counted = |rest: &str| {
            let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            rest.split_once("-of-").is_some_and(|(number, count)| digits(number) && digits(count))
        };
        let rest = file.strip_prefix(stem).and_then(|rest| rest.strip_suffix(".safetensors"));
        let Some(rest) = rest else { return false };
        let inner = rest.strip_suffix(&dotted).or_else(|| rest.strip_prefix(&dotted));
        inner.and_then(|inner| inner.strip_prefix('-')).is_some_and(counted)
    };
    let shards: Vec<String> = files.iter().filter(is_shard).map(|file| (*file).to_owned()).collect();
    if !files.contains(&index.as_str()) || shards.is_empty() {
        return None;
    }
    Some([vec![index], shards].concat())
}

/// Says which file is missing of `files`, those of `folder`: empty, or a name with a slash at its end.
pub(super) fn missing_weights(files: &[&str], folder: &str, stem: &str, variant: &str) -> String {
    let dotted = if variant.is_empty() { String::new() } else { format!(".{variant}") };
    let wanted = format!("{folder}{stem}{dotted}.safetensors");
    let there = folder.strip_suffix('/').unwrap_or("it");
    let mut safe: Vec<&str> = files.iter().copied().filter(|file| file.ends_with(".safetensors")).collect();
    safe.sort_unstable();
    safe.truncate(5);
    let pickles = [".bin", ".ckpt", ".pt", ".pth"];
    let pickled = files.iter().any(|file| pickles.iter().any(|ending| file.ends_with(ending)));
    match (safe.is_empty(), pickled) {
        (false, _) => format!("has no {wanted}; {there} has {}", safe.join(", ")),
        (true, true) => format!("has no {wanted}, only pickle files, which are never read: convert them"),
        (true, false) => format!("has no {wanted}"),
    }
}
