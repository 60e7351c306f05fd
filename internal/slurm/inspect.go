package slurm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Node is a node as the controller sees it.
type Node struct {
	Name       string
	State      string // IDLE, MIXED+DRAIN, DOWN*…, as printed
	Partitions []string
	Features   []string // active ones
	// GRES counts generic resources by type: "gpu:h100", or "gpu" where the
	// resource has no type.
	GRES    map[string]int
	CPUs    int
	Version string // of its slurmd; "" where it has not registered
}

// Usable reports whether the node may get jobs now or soon: it is not down,
// drained, failing or powered off for good.
func (n Node) Usable() bool {
	for _, word := range []string{"DOWN", "DRAIN", "FAIL", "FUTURE", "UNKNOWN", "NOT_RESPONDING"} {
		if strings.Contains(n.State, word) {
			return false
		}
	}
	return !strings.HasSuffix(n.State, "*") // does not answer
}

// Partition is a partition as the controller sees it.
type Partition struct {
	Name    string
	State   string        // UP, DOWN, DRAIN, INACTIVE
	Default bool          // what a job gets that names none
	MaxTime time.Duration // 0 is no limit
	QOS     string        // the partition's own, "" for none
	Nodes   int
	// AllowAccounts, AllowQOS and AllowGroups are nil where everybody is allowed.
	AllowAccounts, AllowQOS, AllowGroups []string
}

// Nodes lists the nodes of the cluster.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	out, err := c.run(ctx, call{program: "scontrol", args: []string{"show", "node", "--oneliner", "--all"}, timeout: c.conf.Timeout})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return parseNodes(out.stdout), nil
}

func parseNodes(text string) []Node {
	var nodes []Node
	for line := range strings.Lines(text) {
		f := fields(line)
		if f["NodeName"] == "" {
			continue // "No nodes in the system", warnings of wrappers
		}
		cpus, _ := strconv.Atoi(f["CPUTot"])
		nodes = append(nodes, Node{
			Name: f["NodeName"], State: f["State"], Partitions: commas(f["Partitions"]), Features: commas(f["ActiveFeatures"]), GRES: gres(f["Gres"]),
			CPUs: cpus, Version: f["Version"],
		})
	}
	return nodes
}

// Partitions lists the partitions of the cluster, hidden ones too.
func (c *Client) Partitions(ctx context.Context) ([]Partition, error) {
	out, err := c.run(ctx, call{program: "scontrol", args: []string{"show", "partition", "--oneliner", "--all"}, timeout: c.conf.Timeout})
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	return parsePartitions(out.stdout)
}

func parsePartitions(text string) ([]Partition, error) {
	var parts []Partition
	for line := range strings.Lines(text) {
		f := fields(line)
		if f["PartitionName"] == "" {
			continue
		}
		nodes, _ := strconv.Atoi(f["TotalNodes"])
		limit, err := span(f["MaxTime"])
		if err != nil {
			return nil, fmt.Errorf("list partitions: %s: %w", f["PartitionName"], err)
		}
		parts = append(parts, Partition{
			Name: f["PartitionName"], State: f["State"], Default: f["Default"] == "YES", MaxTime: limit, Nodes: nodes,
			AllowAccounts: allowed(f["AllowAccounts"]), AllowQOS: allowed(f["AllowQos"]), AllowGroups: allowed(f["AllowGroups"]),
		})
		if q := f["QoS"]; q != "N/A" {
			parts[len(parts)-1].QOS = q
		}
	}
	return parts, nil
}

// QOS lists the names of the cluster's qualities of service. The error is
// ErrNoAccounting where there is no database to name any.
func (c *Client) QOS(ctx context.Context) ([]string, error) {
	out, err := c.run(ctx, call{
		program: "sacctmgr", args: []string{"--noheader", "--parsable2", "--readonly", "show", "qos", "format=name"}, timeout: c.conf.Timeout,
	})
	switch {
	case strings.Contains(out.stderr, "running a supported accounting_storage plugin"):
		return nil, fmt.Errorf("list QOS: %w", ErrNoAccounting)
	case err != nil:
		return nil, fmt.Errorf("list QOS: %w", err)
	}
	return strings.Fields(out.stdout), nil
}

// ClientVersion asks the commands for their version, without the controller.
func (c *Client) ClientVersion(ctx context.Context) (string, error) {
	out, err := c.run(ctx, call{program: "scontrol", args: []string{"--version"}, timeout: c.conf.Timeout})
	if err != nil {
		return "", fmt.Errorf("ask for the version: %w", err)
	}
	_, version, ok := strings.Cut(strings.TrimSpace(out.stdout), " ")
	if !ok {
		return "", fmt.Errorf("scontrol --version printed %q", out.stdout)
	}
	return version, nil
}

// Try asks the controller whether it would take a batch script, without
// submitting it. refusal is its words where it would not, "" where it would; the
// error says that nobody knows.
func (c *Client) Try(ctx context.Context, script string) (refusal string, err error) {
	out, err := c.run(ctx, call{program: "sbatch", args: []string{"--test-only", script}, timeout: c.conf.SubmitTimeout})
	var e *Error
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, &e) && e.Exit > 0 && !errors.Is(err, ErrUnreachable):
		return message(strings.ReplaceAll(out.stderr, "allocation failure: ", "")), nil
	}
	return "", fmt.Errorf("try a submission: %w", err)
}

// fieldForm begins a value of scontrol's one-line records; values may hold blanks.
var fieldForm = regexp.MustCompile(`(?:^| )([A-Za-z][A-Za-z0-9_/]*)=`)

func fields(line string) map[string]string {
	f := map[string]string{}
	line = strings.TrimSpace(line)
	at := fieldForm.FindAllStringSubmatchIndex(line, -1)
	for i, m := range at {
		end := len(line)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		key := line[m[2]:m[3]]
		if _, known := f[key]; !known { // free text at the end repeats nothing
			f[key] = strings.TrimSpace(line[m[1]:end])
		}
	}
	return f
}

func commas(text string) []string {
	if text == "" || text == "(null)" || text == "N/A" {
		return nil
	}
	return strings.Split(text, ",")
}

func allowed(text string) []string {
	if text == "ALL" {
		return nil
	}
	return commas(text)
}

// gres reads "gpu:h100:8(S:0-1),gpu:l4:2,nic:1": sockets and flags are left out.
func gres(text string) map[string]int {
	counts := map[string]int{}
	for _, part := range commas(regexp.MustCompile(`\([^)]*\)`).ReplaceAllString(text, "")) {
		words := slices.DeleteFunc(strings.Split(part, ":"), func(w string) bool { return w == "no_consume" })
		if len(words) == 0 {
			continue
		}
		n := 1
		if v, err := strconv.ParseUint(words[len(words)-1], 10, 20); err == nil && len(words) > 1 {
			n, words = int(v), words[:len(words)-1]
		}
		counts[strings.Join(words, ":")] += n
	}
	return counts
}

// span reads a time limit: [days-]hours:minutes:seconds.
func span(text string) (time.Duration, error) {
	if text == "UNLIMITED" || text == "INFINITE" || text == "" {
		return 0, nil
	}
	days, clock, ok := strings.Cut(text, "-")
	if !ok {
		days, clock = "0", text
	}
	words := append([]string{days}, strings.Split(clock, ":")...)
	if len(words) != 4 {
		return 0, fmt.Errorf("%q is no time limit", text)
	}
	var total time.Duration
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, err := strconv.Atoi(words[i])
		if err != nil || n < 0 || n > 100_000 {
			return 0, fmt.Errorf("%q is no time limit", text)
		}
		total += time.Duration(n) * unit
	}
	return total, nil
}
