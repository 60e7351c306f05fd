package sweep

import (
	"strconv"
	"strings"

	"sbench/internal/diag"
	"sbench/internal/metrics"
	"sbench/internal/quality"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// quality reads what is asked after each measurement.
func (p *parser) quality(n *strictyaml.Node, path string) {
	d := &quality.Definition{MaxOutputTokens: quality.DefaultOutputTokens, TimeLimit: quality.DefaultTimeLimit}
	bad := p.Faults.HasErrors()
	if !p.Fields(n, path, []strictyaml.Field{
		{Key: "method", Read: func(n *strictyaml.Node, path string) {
			v, _ := p.Word(n, path, quality.Methods())
			d.Method = quality.Method(v)
		}},
		{Key: "items", Read: func(n *strictyaml.Node, path string) { p.qualityItems(n, path, d) }},
		{Key: "command", Read: func(n *strictyaml.Node, path string) { d.Command, _ = p.rendered(n, path) }},
		{Key: "count", Read: p.between(1, quality.MaxItems, func(v int64) { d.Count = int(v) })},
		{Key: "endpoint", Read: func(n *strictyaml.Node, path string) {
			v, _ := p.Word(n, path, []string{string(setting.EndpointCompletions), string(setting.EndpointChat)})
			d.Endpoint = setting.Endpoint(v)
		}},
		{Key: "max_output_tokens", Read: p.between(1, quality.MaxOutputTokens, func(v int64) { d.MaxOutputTokens = int(v) })},
		{Key: "temperature", Read: func(n *strictyaml.Node, path string) {
			v, ok := p.Float(n, path)
			if ok && !(v >= 0 && v <= 2) {
				p.Faults.Errorf(n.At, "0 takes the likeliest token every time", "%s is not between 0 and 2", path)
			}
			d.Temperature = v
		}},
		{Key: "seed", Read: p.between(0, 1<<31-1, func(v int64) { d.Seed = v })},
		{Key: "concurrency", Read: p.between(1, quality.MaxConcurrency, func(v int64) { d.Concurrency = int(v) })},
		{Key: "time_limit", Read: func(n *strictyaml.Node, path string) {
			v, ok := p.Duration(n, path)
			if ok && (v.Seconds() < 1 || v > quality.MaxTimeLimit) {
				p.Faults.Errorf(n.At, "", "%s is not between 1s and %v", path, quality.MaxTimeLimit)
			}
			d.TimeLimit = v
		}},
	}) {
		return
	}
	if n.Get("method") == nil {
		p.Faults.Errorf(n.At, strings.Join(quality.Methods(), ", "), "%s.method is missing", path)
	}
	if !bad && p.Faults.HasErrors() {
		return
	}
	p.qualityVariant(n, path, d)
	if d.Method != quality.Command {
		if d.Endpoint == "" {
			d.Endpoint = setting.EndpointChat
		}
		if d.Concurrency == 0 {
			d.Concurrency = quality.DefaultConcurrency
		}
	}
	if !p.Faults.HasErrors() {
		if err := d.Validate(); err != nil {
			p.Faults.Errorf(n.At, "", "%v", err)
		}
	}
	p.file.Quality = d
}

// qualityVariant refuses keys that the method has no use for, and asks for those
// that it needs.
func (p *parser) qualityVariant(n *strictyaml.Node, path string, d *quality.Definition) {
	foreign := func(keys ...string) {
		for _, key := range keys {
			if e := n.Get(key); e != nil {
				p.Faults.Errorf(e.At, "", "%s.%s means nothing with method %s", path, key, d.Method)
			}
		}
	}
	needs := func(key, hint string) {
		if n.Get(key) == nil {
			p.Faults.Errorf(n.At, hint, "%s.%s is missing: method %s needs it", path, key, d.Method)
		}
	}
	if d.Method != quality.Command {
		foreign("command", "count")
		needs("items", `as in items: {path: quality/items.jsonl, digest: "sha256:…"}`)
		return
	}
	foreign("endpoint", "temperature", "concurrency")
	needs("command", `as in command: ["evaluate", "--url", "{url}", "--model", "{model}"]`)
	switch items, count := n.Get("items"), n.Get("count"); {
	case items == nil && count == nil:
		p.Faults.Errorf(n.At, "output that ends early has to be told from a result", "%s.items or %s.count is missing: how many items does the command score?", path, path)
	case items != nil && count != nil:
		p.Faults.Errorf(count.At, "", "%s.count is the number of lines of %s.items, which is there", path, path)
	}
}

func (p *parser) qualityItems(n *strictyaml.Node, path string, d *quality.Definition) {
	p.Fields(n, path, []strictyaml.Field{
		{Key: "path", Read: func(n *strictyaml.Node, path string) {
			v, ok := p.Text(n, path)
			if problem := setting.CheckText(v); ok && (v == "" || problem != "") {
				p.Faults.Errorf(n.At, "", "%s is no path: %s", path, strconv.Quote(v))
			}
			d.ItemsPath = v
		}},
		{Key: "digest", Read: func(n *strictyaml.Node, path string) {
			v, ok := p.Text(n, path)
			v = strings.ToLower(v)
			if hex, found := strings.CutPrefix(v, "sha256:"); ok && (!found || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "") {
				p.Faults.Errorf(n.At, "sha256sum prints it", "%s is not sha256: and 64 hex digits", path)
			}
			d.ItemsDigest = v
		}},
	})
	if n.Kind != strictyaml.Map {
		return
	}
	for _, key := range []string{"path", "digest"} {
		if n.Get(key) == nil {
			p.Faults.Errorf(n.At, "sha256sum prints the digest", "%s.%s is missing", path, key)
		}
	}
}

// between reads a whole number within bounds.
func (p *parser) between(least, most int64, into func(int64)) func(*strictyaml.Node, string) {
	return func(n *strictyaml.Node, path string) {
		if v, ok := p.IntBetween(n, path, least, most); ok {
			into(v)
		}
	}
}

// qualityMetrics refuses to make the number of runs depend on numbers that the
// sweep does not ask for.
func (p *parser) qualityMetrics(at diag.Pos) {
	u := p.file.Repeats.Until
	if u == nil || p.file.Quality != nil {
		return
	}
	for _, name := range u.Metrics {
		if metrics.IsQuality(name) {
			p.Faults.Errorf(at, "a quality block asks for answers after each measurement", "repeats.until can never be met by %s: the sweep has no quality block", name)
		}
	}
}
