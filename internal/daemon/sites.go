package daemon

import (
	"errors"
	"fmt"
	"strings"

	"sbench/internal/diag"
	"sbench/internal/site"
)

// loadSites reads all site files and reports the faults of all of them.
func loadSites(paths []string) ([]*site.Site, error) {
	var sites []*site.Site
	var faults diag.List
	named := map[string]string{}
	for _, path := range paths {
		text, err := readFile(path, site.MaxBytes)
		if err != nil {
			return nil, fmt.Errorf("read site file: %w", err)
		}
		s, list := site.Load(text, path)
		faults = append(faults, list.Errors()...)
		if s == nil {
			continue
		}
		if first, taken := named[s.Name]; taken {
			return nil, fmt.Errorf("%s and %s are both the site %s", first, path, s.Name)
		}
		named[s.Name] = path
		sites = append(sites, s)
	}
	if len(faults) > 0 {
		return nil, errors.New("a site file is wrong\n" + strings.TrimRight(faults.Text(), "\n"))
	}
	return sites, nil
}
