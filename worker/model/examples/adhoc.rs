//! scratch
#![allow(clippy::all, clippy::unwrap_used, clippy::print_stdout, missing_docs)]
use ringtune_model::*;
use safetensors::SafeTensors;
fn f(s: &SafeTensors, n: &str) -> Vec<f32> {
    s.tensor(n).unwrap().data().chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}
fn i(s: &SafeTensors, n: &str) -> Vec<i64> {
    s.tensor(n).unwrap().data().chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect()
}
fn rel(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let n: f64 = a.iter().zip(b).map(|(x, y)| ((x - y) as f64).powi(2)).sum();
    let d: f64 = b.iter().map(|y| (*y as f64).powi(2)).sum();
    (n / d).sqrt()
}
fn cos(a: &[f32], b: &[f32]) -> f64 {
    let n: f64 = a.iter().zip(b).map(|(x, y)| (x * y) as f64).sum();
    let d: f64 = b.iter().map(|y| (*y as f64).powi(2)).sum();
    let e: f64 = a.iter().map(|y| (*y as f64).powi(2)).sum();
    n / (d * e).sqrt()
}
fn many(ck: &str, path: &str) {
    let bytes = std::fs::read(path).unwrap();
    let s = SafeTensors::deserialize(&bytes).unwrap();
    let m = StableDiffusion::open(std::path::Path::new(ck), Precision::Bf16).unwrap();
    let rows = f(&s, "rows");
    let mut r = vec![];
    let mut c = 1f64;
    for k in 0.. {
        let Ok(l) = s.tensor(&format!("{k}.latents")) else { break };
        let ls = l.shape().to_vec();
        let (lat, noi, t, ids) = (
            f(&s, &format!("{k}.latents")),
            f(&s, &format!("{k}.noise")),
            i(&s, &format!("{k}.t")),
            i(&s, &format!("{k}.ids")),
        );
        let g = m
            .gradient(&Microbatch {
                batch: ls[0],
                latent_height: ls[2],
                latent_width: ls[3],
                latents: &lat,
                noise: &noi,
                timesteps: &t,
                input_ids: &ids,
                rows: &rows,
            })
            .unwrap();
        let rg = f(&s, &format!("{k}.fp32.grad"));
        let bg = f(&s, &format!("{k}.bf16.grad"));
        if std::env::var("V").is_ok() { println!("{k} t {:?} norm {:.2e} ours {:.4} ref {:.4} cos {:.5} refcos {:.5}", t, rg.iter().map(|x| (x * x) as f64).sum::<f64>().sqrt(), rel(&g.grad, &rg), rel(&bg, &rg), cos(&g.grad, &rg), cos(&bg, &rg)); }
        r.push(rel(&g.grad, &rg) / rel(&bg, &rg));
        c = c.min(cos(&g.grad, &rg));
    }
    r.sort_by(|a, b| a.total_cmp(b));
    println!(
        "{path}: ratio median {:.3} p90 {:.3} worst {:.3} min cos {:.5}",
        r[r.len() / 2],
        r[r.len() * 9 / 10],
        r[r.len() - 1],
        c
    );
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    println!("{:?}", Runtime::initialise(2).unwrap());
    if a[2].contains("many") {
        many(&a[1], &a[2]);
        return;
    }
    let bytes = std::fs::read(&a[2]).unwrap();
    let s = SafeTensors::deserialize(&bytes).unwrap();
    for p in [Precision::Fp32, Precision::Bf16] {
        let t = std::time::Instant::now();
        let mut m = StableDiffusion::open(std::path::Path::new(&a[1]), p).unwrap();
        println!("{p} open {:?}", t.elapsed());
        let px = s.tensor("pixels").unwrap();
        let sh = px.shape();
        let mo = m.encode_image(&Pixels { height: sh[2], width: sh[3], data: f(&s, "pixels") }).unwrap();
        println!(
            "{p} mean {:.2e} logvar {:.2e}",
            rel(&mo.mean, &f(&s, "mean")),
            rel(&mo.logvar, &f(&s, "logvar"))
        );
        if p == Precision::Bf16 {
            println!("   ref bf16 mean {:.2e}", rel(&f(&s, "bf16.mean"), &f(&s, "mean")));
        }
        m.drop_vae();
        let l = s.tensor("latents").unwrap();
        let ls = l.shape().to_vec();
        let (lat, noi, t, ids, rows) =
            (f(&s, "latents"), f(&s, "noise"), i(&s, "t"), i(&s, "ids"), f(&s, "rows"));
        let mb = Microbatch {
            batch: ls[0],
            latent_height: ls[2],
            latent_width: ls[3],
            latents: &lat,
            noise: &noi,
            timesteps: &t,
            input_ids: &ids,
            rows: &rows,
        };
        let g = m.gradient(&mb).unwrap();
        let g2 = m.gradient(&mb).unwrap();
        assert_eq!(g.grad, g2.grad);
        let rg = f(&s, "fp32.grad");
        println!(
            "{p} loss {} ref {} bf16ref {} grad err {:.2e} cos {:.8} (ref bf16 err {:.2e} cos {:.8}) fwd {:.3} bwd {:.3}",
            g.loss,
            f(&s, "fp32.loss")[0],
            f(&s, "bf16.loss")[0],
            rel(&g.grad, &rg),
            cos(&g.grad, &rg),
            rel(&f(&s, "bf16.grad"), &rg),
            cos(&f(&s, "bf16.grad"), &rg),
            g2.forward_seconds,
            g2.backward_seconds
        );
        if let Ok(im) = s.tensor("image") {
            let n = ids.len() / ls[0];
            let r = m
                .generate(
                    &GenerateRequest {
                        height: sh[2],
                        width: sh[3],
                        prompt_ids: &ids[..n],
                        negative_ids: &ids[n..2 * n],
                        rows: &rows,
                        steps: 7,
                        guidance: 4.0,
                        noise: &noi[..noi.len() / ls[0]],
                    },
                    |_, _| true,
                )
                .unwrap()
                .unwrap();
            let d: Vec<i32> =
                r.data.iter().zip(im.data()).map(|(x, y)| (*x as i32 - *y as i32).abs()).collect();
            println!(
                "mean diff {} count>1 {}",
                d.iter().sum::<i32>() as f64 / d.len() as f64,
                d.iter().filter(|x| **x > 1).count()
            );
            let d = d.iter().max();
            println!("{p} image max diff {d:?}");
        }
    }
}
