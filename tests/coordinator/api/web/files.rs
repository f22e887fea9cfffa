//! Files: whole and in part, and invalid names.

use ringtune_proto::v1;

use super::{Browser, secured};
use crate::{
    coordinator::Coordinator,
    uploads::{chunk, header},
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n0123456789";
const HTML: &[u8] = b"<html><script>alert(1)</script>";

impl Coordinator {
    async fn put(&self, job: &str, name: &str, bytes: &[u8]) {
        let place = v1::UploadHeader {
            job_id: job.to_owned(),
            name: name.to_owned(),
            // A file's claimed type is ignored.
            media_type: "image/png".to_owned(),
            ..header(bytes)
        };
        assert!(self.upload(place, bytes.chunks(1 << 20).map(chunk).collect()).await.unwrap().complete);
    }
}

#[tokio::test]
async fn files_are_saved_and_pictures_shown_by_what_they_are() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let job = coordinator.create(1).await.job_id;
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
    let odd = "ä\";x=' 😀.png";
    for (name, bytes) in [("a.png", PNG), ("b.png", HTML), ("large.bin", &large), (odd, HTML), ("tiny", b"x")]
    {
        coordinator.put(&job, name, bytes).await;
    }
    let file = |name: &str| format!("/api/files/{job}/{name}");
    let picture = browser.get(&file("a.png")).await;
    assert_eq!((picture.status, picture.body.as_slice()), (200, PNG));
    assert_eq!(
        (picture.header("content-type"), picture.header("content-disposition")),
        (Some("image/png"), None)
    );
    let page = browser.get(&file("b.png")).await;
    assert_eq!((page.status, page.body.as_slice()), (200, HTML));
    assert_eq!(page.header("content-type"), Some("application/octet-stream"));
    assert!(page.header("content-disposition").unwrap().starts_with("attachment; filename=\"b.png\""));
    for answer in [&picture, &page] {
        assert_eq!(answer.header("content-security-policy"), Some("sandbox; default-src 'none'"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    let strange = browser.get(&file("%C3%A4%22%3Bx%3D%27%20%F0%9F%98%80.png")).await;
    assert_eq!(strange.status, 200, "{strange:?}");
    let disposition = strange.header("content-disposition").unwrap();
    assert_eq!(
        disposition,
        "attachment; filename=\"___x__ _.png\"; filename*=UTF-8''%C3%A4%22%3Bx%3D%27%20%F0%9F%98%80.png"
    );
    assert_eq!(browser.get(&file("tiny")).await.body, b"x");

    // Parts.
    assert_eq!(browser.get(&file("large.bin")).await.body, large);
    for (range, status, bytes) in [
        ("bytes=0-9", 206, &large[..10]),
        ("bytes=1048570-2097160", 206, &large[1_048_570..2_097_161]),
        ("bytes=-7", 206, &large[large.len() - 7..]),
        ("bytes=2999999-", 206, &large[2_999_999..]),
        ("bytes=3-1", 200, &large[..]),
    ] {
        let part = browser.and("range", range).get(&file("large.bin")).await;
        assert_eq!(part.status, status, "{range}");
        assert!(part.body == bytes, "{range}: {} bytes", part.body.len());
    }
    let part = browser.and("range", "bytes=4-5").get(&file("a.png")).await;
    assert_eq!(
        (part.header("content-range"), part.header("content-type")),
        (Some("bytes 4-5/18"), Some("image/png"))
    );
    let outside = browser.and("range", "bytes=18-").get(&file("a.png")).await;
    assert_eq!((outside.status, outside.header("content-range")), (416, Some("bytes */18")));
    let head = browser.send("HEAD", &file("large.bin"), b"").await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("3000000"), 0));
    let etag = picture.header("etag").unwrap().to_owned();
    assert_eq!(browser.and("if-none-match", &etag).get(&file("a.png")).await.status, 304);

    // By what is in it.
    let hash = etag.trim_matches('"');
    let content = browser.get(&format!("/api/contents/{hash}")).await;
    assert_eq!((content.status, content.body.as_slice()), (200, PNG));
    assert!(content.header("cache-control").unwrap().contains("immutable"));
    coordinator.stop().await;
}

#[tokio::test]
async fn all_files_of_a_job_come_as_one_archive() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let job = coordinator.create(1).await.job_id;
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
    let files = [
        ("z.html", HTML),
        ("one byte", b"x"),
        ("a.png", PNG),
        ("empty", b""),
        ("large.bin", &large),
        ("ä😀", PNG),
    ];
    for (name, bytes) in files {
        coordinator.put(&job, name, bytes).await;
    }
    let path = format!("/api/files/{job}");
    let whole = browser.get(&path).await;
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("application/x-tar")));
    assert_eq!(whole.header("content-length"), Some(whole.body.len().to_string().as_str()));
    let disposition = whole.header("content-disposition").unwrap();
    let folder = disposition.split('"').nth(1).unwrap().strip_suffix(".tar").unwrap();
    assert!(disposition.starts_with("attachment; ") && folder.ends_with(&job[28..]), "{disposition}");
    let mut found = Vec::new();
    for entry in tar::Archive::new(whole.body.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let (path, mut bytes) = (entry.path().unwrap().into_owned(), Vec::new());
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        assert_eq!(path.parent().unwrap().to_str(), Some(folder), "no file stands outside of it");
        found.push((path.file_name().unwrap().to_str().unwrap().to_owned(), bytes));
    }
    found.sort();
    let mut expected = files.map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
    expected.sort();
    assert!(found == expected, "{:?}", found.iter().map(|(name, _)| name).collect::<Vec<_>>());

    // A download that broke off goes on where it was, as long as the files are the same.
    let etag = whole.header("etag").unwrap().to_owned();
    let rest = browser.and("range", "bytes=1000000-").and("if-range", &etag).get(&path).await;
    assert!(rest.status == 206 && rest.body == whole.body[1_000_000..], "{}", rest.status);
    assert_eq!(browser.send("HEAD", &path, b"").await.header("etag"), Some(etag.as_str()));
    coordinator.put(&job, "one more", PNG).await;
    let anew = browser.and("range", "bytes=1000000-").and("if-range", &etag).get(&path).await;
    assert!(anew.status == 200 && anew.body.len() > whole.body.len());

    for nothing in ["/api/files/x", "/api/files/0193f2a4-5b6c-7d8e-9f00-112233445566"] {
        assert!([400, 404].contains(&browser.get(nothing).await.status), "{nothing}");
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn paths_that_lead_elsewhere_lead_nowhere() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let job = coordinator.create(1).await.job_id;
    coordinator.put(&job, "a.png", PNG).await;
    let long = "a".repeat(10_000);
    for name in [
        "..",
        "%2e%2e",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%2f..%2fringtune.sqlite",
        "a.png%00",
        "%00",
        "%ff%fe",
        "a.png/",
        "a.png/../a.png",
        "%0d%0aSet-Cookie:%20x",
        "%",
        "%zz",
        &long,
        "A.PNG",
        "a.png%20",
        "a.png?x=1&..",
    ] {
        let answer = browser.get(&format!("/api/files/{job}/{name}")).await;
        if name.starts_with("a.png?") {
            assert_eq!(answer.status, 200, "a query changes nothing");
        } else {
            assert!([400, 404].contains(&answer.status), "{name:.80}: {answer:?}");
        }
        assert_eq!(answer.header("set-cookie"), None);
    }
    for path in [
        "/api/files/x/a.png",
        "/api/files//a.png",
        "/api/contents/x",
        "/api/contents/..",
        "/api/contents/%2e%2e",
        "/assets/..%2findex.html",
        "/assets/%2e%2e%2fCargo.toml",
        "/assets/",
        "/assets/../index.html",
        "//",
        "/api",
    ] {
        let answer = browser.get(path).await;
        assert!([400, 404].contains(&answer.status), "{path}: {answer:?}");
    }
    let nothing = format!("/api/contents/{}", "0".repeat(64));
    assert_eq!(browser.get(&nothing).await.status, 404);
    coordinator.stop().await;
}

#[tokio::test]
async fn somebody_elses_file_is_not_there() {
    let coordinator = secured().await;
    let job = coordinator.create(1).await.job_id;
    coordinator.put(&job, "a.png", PNG).await;
    let browser = Browser::of(&coordinator);
    for path in [format!("/api/files/{job}/a.png"), format!("/api/files/{job}")] {
        assert_eq!(browser.get(&path).await.status, 401);
        for (role, status) in [(v1::Role::Submitter, 404), (v1::Role::Observer, 200), (v1::Role::Admin, 200)]
        {
            let token = coordinator.token(role, "eve").await.secret;
            assert_eq!(browser.by_cookie(&token).get(&path).await.status, status, "{path} as {role:?}");
        }
    }
    coordinator.stop().await;
}
