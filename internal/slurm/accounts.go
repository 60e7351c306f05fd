package slurm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// User is what Slurm's accounting database says of a user on one cluster.
type User struct {
	Name           string
	DefaultAccount string // "" for none
	AdminLevel     string // None, Operator, Administrator
	// Coordinates are the accounts of which the user is a coordinator.
	Coordinates  []string
	Associations []Association
}

// Association lets a user spend for an account.
type Association struct {
	Account   string
	Partition string   // "" is every partition
	QOS       []string // which may be asked for
	// DefaultQOS is what a job gets that asks for none; "" where Slurm has one for all.
	DefaultQOS string
}

// ErrNoUser says that the accounting database answered and has no association of
// the user on the cluster: Slurm would refuse each of the user's jobs.
var ErrNoUser = errors.New("no association in Slurm's database")

// userForm keeps names from being read as a list, a condition or an option.
var userForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@+$-]*$`)

var userColumns = []string{"User", "DefaultAccount", "AdminLevel", "Account", "Partition", "QOS", "DefaultQOS", "Coordinators"}

// User makes one sacctmgr call for a user's associations on a cluster. The error
// is ErrNoUser where there are none, ErrNoAccounting where the cluster keeps no
// accounting (and so refuses nobody), and wraps ErrUnreachable where nothing is
// known.
func (c *Client) User(ctx context.Context, cluster, name string) (User, error) {
	if !userForm.MatchString(name) || !userForm.MatchString(cluster) {
		return User{}, fmt.Errorf("user %q: %w", name, ErrNoUser)
	}
	out, err := c.manager(ctx, "user", "where", "name="+name, "cluster="+cluster, "withassoc", "withcoord", "format="+strings.Join(userColumns, ","))
	if err != nil {
		return User{}, fmt.Errorf("read associations: %w", err)
	}
	u, err := parseUser(out, name)
	if err != nil {
		return User{}, fmt.Errorf("read associations of %s: %w", name, err)
	}
	return u, nil
}

// manager makes one sacctmgr call that shows something. The error is
// ErrNoAccounting where the cluster keeps no accounting.
func (c *Client) manager(ctx context.Context, args ...string) (string, error) {
	out, err := c.run(ctx, call{program: "sacctmgr", timeout: c.conf.Timeout, args: append([]string{"--noheader", "--parsable2", "--readonly", "show"}, args...)})
	if strings.Contains(out.stderr, "running a supported accounting_storage plugin") {
		err = ErrNoAccounting
	}
	return out.stdout, err
}

// parseUser reads one line for each association. Lines of others, which a name
// that is also a pattern could bring, are refused.
func parseUser(text, name string) (User, error) {
	u := User{Name: name}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" {
			continue
		}
		f := strings.Split(line, "|")
		if len(f) != len(userColumns) {
			return User{}, fmt.Errorf("sacctmgr printed %q", line)
		}
		if f[0] != name {
			return User{}, fmt.Errorf("sacctmgr answered for %q", f[0])
		}
		u.DefaultAccount, u.AdminLevel = f[1], f[2]
		if f[3] != "" {
			u.Associations = append(u.Associations, Association{Account: f[3], Partition: f[4], QOS: list(f[5]), DefaultQOS: f[6]})
		}
		for _, a := range list(f[7]) {
			if !slices.Contains(u.Coordinates, a) {
				u.Coordinates = append(u.Coordinates, a)
			}
		}
	}
	if len(u.Associations) == 0 {
		return User{}, ErrNoUser
	}
	return u, nil
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// May says why Slurm would refuse a job of the user, "" where it would not. An
// empty account is the default one, an empty QOS the association's. partitions
// may be several, separated by commas: one that is allowed is enough for Slurm.
func (u *User) May(account, partitions, qos string) string {
	if account == "" {
		account = u.DefaultAccount
	}
	known := false
	for _, a := range u.Associations {
		if a.Account != account {
			continue
		}
		known = true
		if a.Partition != "" && partitions != "" && !slices.Contains(strings.Split(partitions, ","), a.Partition) {
			continue
		}
		if qos == "" || len(a.QOS) == 0 || slices.Contains(a.QOS, qos) {
			return ""
		}
	}
	switch {
	case account == "":
		return fmt.Sprintf("%s has no default account: name one", u.Name)
	case !known:
		return fmt.Sprintf("%s has no association with account %s", u.Name, account)
	case qos != "":
		return fmt.Sprintf("%s may not use QOS %s with account %s and partition %s", u.Name, qos, account, orAny(partitions))
	}
	return fmt.Sprintf("%s may not use partition %s with account %s", u.Name, partitions, account)
}

func orAny(s string) string {
	if s == "" {
		return "(any)"
	}
	return s
}
