//! JSON with one spelling for each value.

use serde_json::Value;

/// The value as JSON text without blanks, every object's keys in the order of their bytes, so that equal values have equal
/// text. serde_json's maps are sorted, as long as nothing turns on its feature `preserve_order`: the test would see it.
pub fn canonical_json(value: &Value) -> String {
    value.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth() {
        let value = json!({"b": [{"z": 1, "a": null}, "x\"y"], "a": 2e-3, "é": true, "A": {}});
        assert_eq!(canonical_json(&value), r#"{"A":{},"a":0.002,"b":[{"a":null,"z":1},"x\"y"],"é":true}"#);
        assert_eq!(serde_json::from_str::<Value>(&canonical_json(&value)).unwrap(), value);
    }
}
