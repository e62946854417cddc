// Package server is the half that runs inside a box: one HTTP handler in front
// of an agent-server, or alone. [Run] is the whole boxd program, for cmd/boxd
// and for a hidden command of the other binaries.
//
// In front of an agent-server it passes everything on unchanged (methods,
// streams, WebSockets, cookies, errors) and adds what upstream lacks: use,
// drain, storage status and reclaim, announced in server_info.capabilities.
// Alone it serves the read side of the same API from the files on disk, so that
// a box without an agent-server can be looked at and exported.
//
// It never moves the idle clock of the agent-server, never loads a conversation
// to answer a question of ours, never hands out a history with a credential
// that it can recognise, and never follows a link below the box.
package server
