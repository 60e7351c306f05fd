package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Shares asks sshare for the share of every account of the cluster's fair-share
// tree: of all usage, the part that is meant for it, between 0 and 1. The root is
// left out. ErrNoAccounting where the cluster has no such tree.
func (c *Client) Shares(ctx context.Context) (map[string]float64, error) {
	out, err := c.run(ctx, call{
		program: "sshare", timeout: c.conf.Timeout,
		args: []string{"--noheader", "--parsable2", "--all", "--format=Account,User,RawShares"},
	})
	if err != nil {
		return nil, fmt.Errorf("read shares: %w", err)
	}
	shares, err := parseShares(out.stdout)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read shares: %w", err)
	case len(shares) == 0:
		return nil, fmt.Errorf("read shares: %w", ErrNoAccounting)
	}
	return shares, nil
}

// shareNode is an account or a user of the tree.
type shareNode struct {
	account string // "" for a user
	depth   int
	shares  float64 // against its siblings
	whole   bool    // it competes as a part of its parent
	parent  *shareNode
	below   float64 // the shares of its children
}

// share is what the node may have of everything. The root has all of it.
func (n *shareNode) share() float64 {
	switch {
	case n.parent == nil:
		return 1
	case n.whole:
		return n.parent.share()
	case n.shares == 0:
		return 0
	}
	return n.parent.share() * n.shares / n.parent.below
}

// parseShares reads the tree, whose lines are indented by one blank for each
// level. NormShares is not asked for: whether it is a part of everything or of
// the siblings' depends on PriorityFlags.
func parseShares(text string) (map[string]float64, error) {
	var path []*shareNode // from the root to the last line's
	var accounts []*shareNode
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) != 3 {
			return nil, fmt.Errorf("sshare printed %q", line)
		}
		name := strings.TrimLeft(f[0], " ")
		n := &shareNode{account: name, depth: len(f[0]) - len(name)}
		if f[1] != "" {
			n.account = ""
		}
		if n.depth > len(path) || name == "" {
			return nil, fmt.Errorf("sshare printed %q below nothing", line)
		}
		path = append(path[:n.depth], n)
		if n.depth == 0 {
			continue
		}
		n.parent = path[n.depth-1]
		if n.whole = f[2] == "parent"; !n.whole {
			shares, err := strconv.ParseUint(f[2], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("sshare says that %q has %q shares", name, f[2])
			}
			n.shares = float64(shares)
			n.parent.below += n.shares
		}
		if n.account != "" {
			accounts = append(accounts, n)
		}
	}
	shares := map[string]float64{}
	for _, n := range accounts {
		shares[n.account] = n.share()
	}
	return shares, nil
}
