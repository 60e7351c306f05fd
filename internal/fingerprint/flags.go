package fingerprint

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/result"
)

// volatile are the ends of names of what an engine reports among its flags and
// what differs from one start to the next by its nature: addresses, moments,
// processes, and what follows from the memory that happened to be free.
var volatile = []string{
	"host", "port", "ports", "pid", "addr", "address", "url", "uptime", "time", "timestamp", "date", "random_seed", "instance_id",
	"max_total_num_tokens", "max_total_tokens", "num_gpu_blocks", "num_cpu_blocks", "memory_usage", "mem_usage", "avail_mem",
	"available_gpu_mem", "throughput", "internal_states", "slots_idle", "is_sleeping", "node_rank",
}

// ComparableFlags are the resolved flags that must be the same whenever a setting
// runs on one image. It is nil where the engine reports none.
func ComparableFlags(flags map[string]string) map[string]string {
	var out map[string]string
	for name, value := range flags {
		plain := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
		moves := slices.ContainsFunc(volatile, func(v string) bool { return plain == v || strings.HasSuffix(plain, "_"+v) })
		if moves {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value
	}
	return out
}

// maxFlagLines bounds how many differing flags are named.
const maxFlagLines = 20

// CompareFlags compares the resolved flags with those that the first valid attempt
// of the setting had on the same image. expected nil is no attempt yet. Flags
// follow from the image and the setting, which makes a difference an artefact's.
func CompareFlags(expected, realized map[string]string) []Item {
	if expected == nil {
		return nil
	}
	realized = ComparableFlags(realized)
	names := map[string]bool{}
	for name := range expected {
		names[name] = true
	}
	for name := range realized {
		names[name] = true
	}
	var items []Item
	differ := 0
	for _, name := range slices.Sorted(maps.Keys(names)) {
		want, pinned := expected[name]
		got, said := realized[name]
		i := Item{Name: "engine flag " + name, Pinned: want, Realized: got, Class: ClassArtefact, Verdict: result.VerdictFail}
		switch {
		case pinned && said && want == got:
			continue
		case !said:
			i.Verdict, i.Why = result.VerdictUnknown, "the engine does not report it any more"
		case !pinned:
			i.Pinned = "not reported"
		}
		if i.Realized == "" && said {
			i.Realized = `""`
		}
		if differ++; differ <= maxFlagLines {
			items = append(items, i)
		}
	}
	if differ > maxFlagLines {
		items = append(items, Item{
			Name: "engine flags", Pinned: "no further difference", Realized: strconv.Itoa(differ-maxFlagLines) + " more",
			Class: ClassArtefact, Verdict: result.VerdictFail,
		})
	}
	if differ == 0 {
		items = append(items, Item{
			Name: "engine flags", Pinned: "as resolved before", Realized: strconv.Itoa(len(expected)) + " flags", Class: ClassArtefact, Verdict: result.VerdictPass,
		})
	}
	return items
}
