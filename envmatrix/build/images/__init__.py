"""Image definitions: their build context, labels, contents and bills of materials."""
