package site

import (
	"path"

	"sbench/internal/batch"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// mirrors reads the list of mirrors. A password or key that was pasted here must
// not be printed.
func (l *loader) mirrors(n *strictyaml.Node, p string) {
	if !l.List(n, p) {
		return
	}
	for _, item := range n.Items {
		var m Mirror
		l.Fields(item, p, []strictyaml.Field{
			{Key: "url", Read: l.mirrorURL(&m.URL)},
			{Key: "key", Read: l.concealedPath(&m.Key, "name the file that holds the private key")},
			{Key: "known_hosts", Read: l.concealedPath(&m.KnownHosts, "name the file that holds the host keys")},
		})
		if item.Kind == strictyaml.Map {
			for _, key := range []string{"url", "key", "known_hosts"} {
				if item.Get(key) == nil {
					l.Faults.Concealf(item.At, "", "%s: %s is missing", p, key)
				}
			}
		}
		l.site.Mirrors = append(l.site.Mirrors, m)
	}
}

func (l *loader) mirrorURL(into *string) readFunc {
	return func(n *strictyaml.Node, p string) {
		v, ok := l.Text(n, p)
		if !ok {
			return
		}
		if _, err := batch.ParseMirrorURL(v); err != nil {
			l.Faults.Concealf(n.At, "", "%s %v", p, err)
			return
		}
		*into = v
	}
}

// concealedPath reads an absolute path and does not print what is none.
func (l *loader) concealedPath(into *string, hint string) readFunc {
	return func(n *strictyaml.Node, p string) {
		v, ok := l.Text(n, p)
		if !ok {
			return
		}
		problem := checkPath(v)
		if text := setting.CheckText(v); text != "" {
			problem = text
		}
		if problem != "" {
			l.Faults.Concealf(n.At, hint, "%s %s", p, problem)
			return
		}
		*into = path.Clean(v)
	}
}
