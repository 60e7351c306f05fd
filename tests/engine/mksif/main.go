// Command mksif wraps a squashfs file system into a genuine SIF container
// image. The same input gives the same bytes: no time and no random id is
// written.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apptainer/sif/v2/pkg/sif"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("mksif", flag.ContinueOnError)
	flags.SetOutput(stderr)
	arch := flags.String("arch", "amd64", "architecture of the programs inside")
	labels := labelFlag{}
	flags.Var(labels, "label", "KEY=VALUE to store as a label; may be given again")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() != 2 {
		fmt.Fprintln(stderr, "usage: mksif [-arch ARCH] [-label KEY=VALUE]... ROOTFS.sqfs OUT.sif")
		return 2
	}
	if err := build(flags.Arg(0), flags.Arg(1), *arch, labels); err != nil {
		fmt.Fprintf(stderr, "mksif: error: %v\n", err)
		return 1
	}
	return 0
}

type labelFlag map[string]string

func (l labelFlag) String() string { return "" }

func (l labelFlag) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return fmt.Errorf("want KEY=VALUE")
	}
	l[key] = value
	return nil
}

func build(squashfs, image, arch string, labels map[string]string) (err error) {
	root, err := os.Open(squashfs)
	if err != nil {
		return fmt.Errorf("open root file system: %w", err)
	}
	defer root.Close()
	text, err := json.Marshal(labels) // sorted keys
	if err != nil {
		return fmt.Errorf("encode labels: %w", err)
	}
	definition, err1 := sif.NewDescriptorInput(sif.DataDeffile, strings.NewReader("Bootstrap: scratch\n"))
	label, err2 := sif.NewDescriptorInput(sif.DataLabels, strings.NewReader(string(text)))
	partition, err3 := sif.NewDescriptorInput(sif.DataPartition, root, sif.OptPartitionMetadata(sif.FsSquash, sif.PartPrimSys, arch))
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("describe image: %w", err)
	}
	file, err := sif.CreateContainerAtPath(image, sif.OptCreateDeterministic(),
		sif.OptCreateWithLaunchScript("#!/usr/bin/env run-singularity\n"),
		sif.OptCreateWithDescriptors(definition, label, partition))
	if err != nil {
		return fmt.Errorf("create image: %w", err)
	}
	if err := file.UnloadContainer(); err != nil {
		return fmt.Errorf("close image: %w", err)
	}
	return nil
}
