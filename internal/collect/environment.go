package collect

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sbench/internal/fingerprint"
)

// environmentKey is equal for two attempts whose realized environments may be
// pooled. It holds what a setting can leave unpinned and what moves a number; it
// leaves out what names one machine or one moment (host names, UUIDs, loads,
// temperatures), or every node would be an environment of its own. It is "" for
// no fingerprint.
func environmentKey(text json.RawMessage) (string, error) {
	if len(text) == 0 {
		return "", nil
	}
	var f fingerprint.Fingerprint
	if err := json.Unmarshal(text, &f); err != nil {
		return "", fmt.Errorf("read fingerprint: %w", err)
	}
	nodes := make([]string, len(f.Nodes))
	for i := range f.Nodes {
		line, err := json.Marshal(nodeKey(&f.Nodes[i]))
		if err != nil {
			return "", fmt.Errorf("encode fingerprint: %w", err)
		}
		nodes[i] = string(line)
	}
	slices.Sort(nodes)
	whole, err := json.Marshal([]any{
		f.Image.Digest, f.Checkpoint.Digest, f.Container.Version,
		f.Engine.Kind, f.Engine.Version, f.Engine.CUDA, f.Engine.NCCL, f.Engine.Torch, nodes,
	})
	if err != nil {
		return "", fmt.Errorf("encode fingerprint: %w", err)
	}
	sum := sha256.Sum256(whole)
	return hex.EncodeToString(sum[:]), nil
}

func nodeKey(n *fingerprint.Node) []any {
	key := []any{n.Kernel, n.Arch, n.CPUModel, n.Governor, n.Turbo, n.SMT, n.THP, n.GPUSource}
	if n.GPUs == nil {
		return key
	}
	devices := make([]string, len(n.GPUs.Devices))
	for i := range n.GPUs.Devices {
		d := &n.GPUs.Devices[i]
		devices[i] = strings.Join([]string{
			known(d.Name), known(d.VBIOS), known(d.MemoryTotal), known(d.MIG), known(d.ECC),
			known(d.Power.Limit), known(d.Clocks.SMTarget), known(d.Clocks.MemTarget),
		}, "|")
	}
	slices.Sort(devices)
	return append(key, known(n.GPUs.Driver), known(n.GPUs.CUDADriver), devices)
}

func known[T any](v *T) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprint(*v)
}

// resolvedFlags are what the engine said its flags resolved to, and the digest of
// the image that said so.
func resolvedFlags(text json.RawMessage) (image string, flags map[string]string) {
	var f struct {
		Image  fingerprint.Artefact `json:"image"`
		Engine fingerprint.Engine   `json:"engine"`
	}
	if json.Unmarshal(text, &f) != nil {
		return "", nil // environmentKey has said so
	}
	return f.Image.Digest, f.Engine.Flags
}
