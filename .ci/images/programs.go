package main

import (
	"fmt"
	"slices"
	"strings"
)

// Program is a program that has an image.
type Program struct {
	// Name is the name of the program, of its image and of its folder below apps.
	Name string
	// Summary is the image's description.
	Summary string
	// Versioned programs have a variable Version in their app's root package.
	Versioned bool
}

// programs are the programs whose images the manifests in deployments name.
var programs = []Program{
	{"controlplane", "Control plane of Windlass: the API, rollouts and the feed of every region", true},
	{"agent", "Agent of Windlass: runs the apps that the control plane assigned to its region", true},
	{"gateway", "Gateway of Windlass: sends requests of clients to ready instances of a region", true},
	{"modelserver", "Model server of Windlass for demos and tests", false},
}

// architectures are the architectures of every index.
var architectures = []string{"amd64", "arm64"}

// choose returns the elements of all whose names are in names, in the order of all. Without names, it returns all.
func choose[T any](flag string, all []T, name func(T) string, names []string) ([]T, error) {
	if len(names) == 0 {
		return all, nil
	}
	known := make([]string, len(all))
	for i, each := range all {
		known[i] = name(each)
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("%s %q: give one of %s", flag, n, strings.Join(known, ", "))
		}
	}
	var chosen []T
	for i, each := range all {
		if slices.Contains(names, known[i]) {
			chosen = append(chosen, each)
		}
	}
	return chosen, nil
}
