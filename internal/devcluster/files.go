package devcluster

import (
	"bytes"
	_ "embed"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

//go:embed site.yaml.tmpl
var siteTemplate string

type siteData struct {
	Name, Dir, Apptainer string
	MaxArraySize         int
	GPU, L4, CPU         bool
}

// siteFile describes the cluster to sbenchd.
func (c *Cluster) siteFile() (string, error) {
	tmpl, err := template.New("site.yaml").Funcs(template.FuncMap{"quote": yamlQuote}).Parse(siteTemplate)
	if err != nil {
		return "", err
	}
	o := c.opts
	var out bytes.Buffer
	err = tmpl.Execute(&out, siteData{
		Name: o.Name, Dir: o.Dir, Apptainer: o.Apptainer, MaxArraySize: o.MaxArraySize,
		GPU: o.Nodes.GPU > 0, L4: o.Nodes.L4 > 0, CPU: o.Nodes.CPU > 0,
	})
	return out.String(), err
}

// daemonFile is sbenchd's configuration.
func (c *Cluster) daemonFile() string {
	var b strings.Builder
	line := func(key, value string) { b.WriteString(key + ": " + yamlQuote(value) + "\n") }
	b.WriteString("# Written by sbench dev up: changes are lost at the next one.\n")
	line("socket", c.Socket())
	line("dsn", c.DSN())
	b.WriteString("sites: [" + yamlQuote(c.SiteFile()) + "]\n")
	line("runner", filepath.Join(c.opts.Binaries, "sbench-runner"))
	line("gpu_helper", filepath.Join(c.opts.Binaries, "sbench-gpu"))
	line("log_level", "info")
	return b.String()
}

// yamlQuote writes a double-quoted YAML scalar; Go's escapes of printable text
// are YAML's too.
func yamlQuote(s string) string { return strconv.Quote(s) }
