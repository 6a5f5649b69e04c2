package ident_test

import (
	"fmt"

	"github.com/windlass-run/windlass/pkg/ident"
)

func ExampleValid() {
	id := ident.New("app")
	fmt.Println(ident.Valid("app", id), ident.Valid("dep", id), ident.Valid("app", "app_1"))
	// Output: true false false
}

func ExampleValidName() {
	for _, name := range []string{"chat", "chat-2", "2-chat", "Chat"} {
		fmt.Println(name, ident.ValidName(name))
	}
	// Output:
	// chat true
	// chat-2 true
	// 2-chat false
	// Chat false
}
