// Command unzip writes one program of a zip archive to a file:
//
//	unzip ARCHIVE NAME FILE
//
// .ci/tool uses it, because not every machine has a program that reads zip archives.
package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: unzip ARCHIVE NAME FILE")
		os.Exit(2)
	}
	if err := unzip(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "unzip:", err)
		os.Exit(1)
	}
}

// unzip writes one file of the archive, by its name, to a new executable file.
func unzip(archive, name, file string) (err error) {
	all, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	from, err := all.Open(name)
	if err != nil {
		return fmt.Errorf("%s: %w", archive, err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	_, err = io.Copy(to, from)
	return err
}
