package devcluster

import (
	"context"
	"os"
	"strings"
	"time"
)

// Status is the state of a cluster. Its JSON form is the answer of
// `sbench dev status --json`.
type Status struct {
	Dir  string `json:"dir"`
	Name string `json:"name"`
	// Up says that every component is alive.
	Up         bool              `json:"up"`
	Port       int               `json:"port"` // slurmctld's
	Namespaces bool              `json:"namespaces"`
	Socket     string            `json:"socket"`
	DSN        string            `json:"dsn"`
	SiteFile   string            `json:"site_file"`
	Components []ComponentStatus `json:"components"`
}

// ComponentStatus is the state of one daemon or node.
type ComponentStatus struct {
	Name  string `json:"name"`
	Alive bool   `json:"alive"`
	// PID is 0 where the component was not started.
	PID int `json:"pid"`
	// NodeState is Slurm's word for a node; "" for daemons and while slurmctld
	// does not answer.
	NodeState string `json:"node_state,omitempty"`
	Log       string `json:"log"`
}

// Status asks the processes and, within two seconds, slurmctld.
func (c *Cluster) Status(ctx context.Context) Status {
	s := Status{
		Dir: c.opts.Dir, Name: c.opts.Name, Up: true, Port: c.port, Namespaces: c.namespaces,
		Socket: c.Socket(), DSN: c.DSN(), SiteFile: c.SiteFile(),
	}
	states := map[string]string{}
	if c.Alive("slurmctld") && c.Alive("munged") {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		states = c.nodeStates(ctx)
	}
	for _, k := range c.components() {
		p, _ := c.recorded(k.name)
		log := c.path("log", k.name+".log")
		if c.isNode(k.name) {
			log = c.path("log", "slurmd."+k.name+".log")
		}
		if _, err := os.Stat(log); err != nil {
			log = c.outputFile(k.name)
		}
		alive := p.PID > 0 && p.alive()
		s.Up = s.Up && alive
		s.Components = append(s.Components, ComponentStatus{Name: k.name, Alive: alive, PID: p.PID, NodeState: states[k.name], Log: log})
	}
	return s
}

// nodeStates is empty while slurmctld does not answer.
func (c *Cluster) nodeStates(ctx context.Context) map[string]string {
	states := map[string]string{}
	out, err := c.command(ctx, "sinfo", "-h", "-N", "-o", "%N %T").Output()
	if err != nil {
		return states
	}
	for line := range strings.Lines(string(out)) {
		if node, state, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			states[node] = state
		}
	}
	return states
}
