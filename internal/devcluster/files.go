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
	Name, Dir, Slurm, Apptainer string
	DefaultPartition            string
	Partitions                  []string
	Accounting                  bool
	MaxArraySize                int
	Nodes                       Nodes
}

// siteFile describes the cluster to sbenchd.
func (c *Cluster) siteFile() (string, error) {
	tmpl, err := template.New("site.yaml").Funcs(template.FuncMap{"quote": yamlQuote}).Parse(siteTemplate)
	if err != nil {
		return "", err
	}
	o := c.opts
	d := siteData{
		Name: o.Name, Dir: o.Dir, Apptainer: o.Apptainer, Accounting: !o.NoAccounting, MaxArraySize: o.MaxArraySize, Nodes: o.Nodes,
	}
	if sbatch, err := lookPath("sbatch"); err == nil {
		d.Slurm = filepath.Dir(sbatch)
	}
	for _, k := range o.Nodes.kinds() {
		if k.count > 0 {
			d.Partitions = append(d.Partitions, k.partition)
		}
	}
	d.DefaultPartition = d.Partitions[0] // Options.check: there is at least one node
	var out bytes.Buffer
	err = tmpl.Execute(&out, d)
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
	if helper := filepath.Join(c.opts.Binaries, "sbench-gpu"); isExecutable(helper) {
		line("gpu_helper", helper)
	}
	line("log_level", "info")
	return b.String()
}

// yamlQuote writes a double-quoted YAML scalar; Go's escapes of printable text
// are YAML's too.
func yamlQuote(s string) string { return strconv.Quote(s) }
