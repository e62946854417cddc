// Package workspacetar reads the archive of a box's workspace and takes nothing
// in it on trust. The box that wrote it, and the connection that it came over,
// may break off, lie, or be hostile. Package agentserver and the export store
// call it; package agentserver/workspace is the writer.
//
// What it must never do: write anything, follow a name, or hold more than one
// list of entries at a time. Memory does not depend on the size of an archive,
// but on the number of repositories in it.
//
// An archive is taken only when its manifest comes last, when every entry is on
// a list and as the list says, when the lists and streams have the sums that the
// manifest says, and when nothing follows. Names are whole, lead nowhere else,
// and come in the order of a walk, so that none is there twice and none lies
// below a link.
package workspacetar
