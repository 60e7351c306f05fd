package web_test

import (
	"os/exec"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestAlerts_Promtool: Prometheus itself takes the shipped rules, and their unit
// tests hold.
func TestAlerts_Promtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED: promtool is not installed here (Debian's package prometheus has it): nothing but the names in the alert rules is tested")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "../../docs/monitoring"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestAlerts_Tested: every alert that pages somebody has a unit test in which it
// fires and one in which it does not.
func TestAlerts_Tested(t *testing.T) {
	t.Parallel()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert  string
				Labels map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(readFile(t, "../../docs/monitoring/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	var tests struct {
		Tests []struct {
			Cases []struct {
				Alert string      `yaml:"alertname"`
				Fires []yaml.Node `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(readFile(t, "../../docs/monitoring/alerts_test.yaml"), &tests); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, group := range tests.Tests {
		for _, c := range group.Cases {
			fires[c.Alert] = fires[c.Alert] || len(c.Fires) > 0
			silent[c.Alert] = silent[c.Alert] || len(c.Fires) == 0
		}
	}
	pages := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Labels["severity"] != "page" {
				continue
			}
			pages++
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s pages somebody: tested that it fires %v, that it does not %v", r.Alert, fires[r.Alert], silent[r.Alert])
			}
		}
	}
	if pages == 0 {
		t.Error("no alert pages anybody")
	}
}
